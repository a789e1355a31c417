-- penalty_window: the same arithmetic as penalty_window.py; see there. A state is a string, or
-- false for a new counter. No redis.call here.

local MAX_COUNT = 4294967295 -- 2^32 - 1

local function read(state, now, spec)
  local window = { number = math.floor(now / spec.window), count = 0, ends_penalty = 0 }
  if type(state) == "string" and #state == 21 and string.sub(state, 1, 1) == "p" then
    local number, count, ends_penalty = struct.unpack(">dI4d", state, 2)
    local ahead = number - window.number
    window.damaged = ahead > 1
    if ahead == 0 or (ahead == 1 and count > 0) then
      window.number, window.count = number, count
    end
    if not window.damaged then
      window.ends_penalty = ends_penalty
    end
  end
  window.ends = (window.number + 1) * spec.window
  return window
end

local function packed(window)
  return struct.pack(">c1dI4d", "p", window.number, window.count, window.ends_penalty)
end

local function reset(window, now)
  return math.max(window.ends, window.ends_penalty) - now
end

-- While a penalty lasts nothing is left.
local function remaining_of(window, now, limit)
  return now < window.ends_penalty and 0 or math.max(0, limit - window.count)
end

local penalty_window = {}

function penalty_window.charge(state, now, addend, spec, force)
  local limit, window = spec.limit, read(state, now, spec)
  local penalized = now < window.ends_penalty
  local passed = window.count + addend <= limit and not (penalized and addend > 0)
  local counted, retry, remaining = 0, 0, remaining_of(window, now, limit)
  if passed then
    counted, window.count = addend, window.count + addend
    remaining = remaining_of(window, now, limit)
  else
    if addend > 0 and force and not penalized then
      counted = addend
      window.count = math.min(window.count + addend, MAX_COUNT)
      window.ends_penalty = math.max(window.ends_penalty, now + spec.penalty)
    end
    local passes = math.max(window.ends_penalty, now)
    if passes < window.ends and window.count + addend > limit then
      passes = window.ends
    end
    retry = addend <= limit and passes - now or spec.window
  end
  return {
    passed = passed,
    state = counted > 0 and packed(window) or state,
    remaining = remaining,
    reset = reset(window, now),
    retry = retry,
    counted = counted,
    damaged = window.damaged,
  }
end

function penalty_window.refund(state, now, addend, spec, _, receipt)
  local window = read(state, now, spec)
  local damaged, given_back = window.damaged, math.min(window.count, addend)
  if receipt and receipt.until_us ~= now + reset(window, now) then
    given_back = 0
  end
  if given_back > 0 then
    window.count = window.count - given_back
    state = packed(window)
    window = read(state, now, spec)
  end
  return {
    passed = true,
    state = state,
    remaining = remaining_of(window, now, spec.limit),
    reset = reset(window, now),
    retry = 0,
    counted = given_back,
    damaged = damaged,
  }
end

return penalty_window
