-- fixed_window: the same arithmetic as fixed_window.py, line for line; see there.
-- A state is a number, or false for a new counter. No redis.call here.

local MAX_COUNT = 4294967295 -- 2^32 - 1
local COUNTS = 4294967296 -- 2^32
local NUMBERS = 1048576 -- 2^20

local function read(state, now, window)
  local number = math.floor(now / window)
  if not state then
    return number, 0
  end
  local ahead = (math.floor(state / COUNTS) - number) % NUMBERS
  if ahead > 1 then
    return number, 0
  end
  return number + ahead, state % COUNTS
end

local function packed(number, count)
  return number % NUMBERS * COUNTS + count
end

local fixed_window = {
  adds = true, -- hits that pass within a window add their number to its state
}

function fixed_window.charge(state, now, addend, limit, window, force)
  local number, count = read(state, now, window)
  local reset = (number + 1) * window - now
  local total = count + addend
  local passed = total <= limit
  if addend == 0 or not (passed or force) then
    return { passed = passed, state = state, left = math.max(0, limit - count), reset = reset, counted = 0 }
  end
  local left = passed and limit - total or math.max(0, limit - count)
  return {
    passed = passed,
    state = packed(number, math.min(total, MAX_COUNT)),
    left = left,
    reset = reset,
    counted = addend,
  }
end

function fixed_window.refund(state, now, addend, limit, window)
  local number, count = read(state, now, window)
  local reset = (number + 1) * window - now
  local given_back = math.min(count, addend)
  if given_back > 0 then
    state = packed(number, count - given_back)
  end
  return {
    passed = true,
    state = state,
    left = math.max(0, limit - count + given_back),
    reset = reset,
    counted = given_back,
  }
end

return fixed_window
