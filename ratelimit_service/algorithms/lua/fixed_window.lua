-- fixed_window: the same arithmetic as fixed_window.py; see there. A state is a number, or a
-- string where the first hit begins the window, or false for a new counter. No redis.call here.

local MAX_COUNT = 4294967295 -- 2^32 - 1
local COUNTS = 4294967296 -- 2^32
local NUMBERS = 1048576 -- 2^20: with the count below 2^52, and a state is gone long before that
local FAR_AHEAD = 1024

local fixed_window = {}

local function first_hit(state, now, window)
  local found = { count = 0, start = now, window = window, reset = 0 }
  if type(state) == "string" and #state == 13 and string.sub(state, 1, 1) == "h" then
    local start, count = struct.unpack(">dI4", state, 2)
    found.damaged = start - now >= window
    if count > 0 and not found.damaged and now < start + window then
      found.count, found.start, found.reset = count, start, start + window - now
    end
  end
  return found
end

local function numbered(state, now, spec)
  local found = { count = 0, window = spec.window }
  local number, ending, next_ending
  if spec.periods then
    local start
    number, start, ending, next_ending = spec.periods(now)
    found.window = ending - start
  else
    number = math.floor(now / found.window)
    ending = (number + 1) * found.window
    next_ending = ending + found.window
  end
  if type(state) == "number" then
    local ahead = (math.floor(state / COUNTS) - number) % NUMBERS
    if ahead <= 1 then
      found.count = state % COUNTS
      if ahead == 1 and found.count > 0 then
        number, ending = number + 1, next_ending
      end
    else
      found.damaged = ahead < FAR_AHEAD
    end
  end
  found.number, found.reset = number, ending - now
  return found
end

local function read(state, now, spec)
  if spec.first_hit then
    return first_hit(state, now, spec.window)
  end
  return numbered(state, now, spec)
end

local function packed(found, count)
  if found.start then
    return struct.pack(">c1dI4", "h", found.start, count)
  end
  return found.number % NUMBERS * COUNTS + count
end

local function charge(state, now, addend, spec, force)
  local limit, found = spec.limit, read(state, now, spec)
  local count, reset, retry, counted = found.count, found.reset, 0, 0
  local passed = count + addend <= limit and (addend > 0 or count < MAX_COUNT)
  if not passed then
    retry = addend <= limit and reset or found.window
  end
  if addend > 0 and (passed or force) then
    counted = addend
    state = packed(found, math.min(count + addend, MAX_COUNT))
    if count == 0 and found.start then
      reset = found.window
    end
  end
  return {
    passed = passed,
    state = state,
    remaining = passed and limit - count - addend or math.max(0, limit - count),
    reset = reset,
    retry = retry,
    counted = counted,
    damaged = found.damaged,
  }
end

fixed_window.charge = charge

-- What makes up states at one moment: what the count is added to, the reset, and whether a state is of a window that
-- is over, or nothing counts in it.
function fixed_window.moment(now, window)
  local number = math.floor(now / window)
  local function is_over(state)
    local ahead = (math.floor(state / COUNTS) - number) % NUMBERS
    return ahead >= FAR_AHEAD or (ahead == 0 and state % COUNTS == 0)
  end
  return number % NUMBERS * COUNTS, (number + 1) * window - now, is_over
end

-- Whether the receipt is of this window: it ends then, or it had begun when that counted.
local function of_receipt(found, receipt, now)
  if receipt.until_us == now + found.reset then
    return true
  end
  local since = found.start and receipt.at_us - found.start
  return since and since >= 0 and since < found.window
end

function fixed_window.refund(state, now, addend, spec, _, receipt)
  local found = read(state, now, spec)
  local given_back = math.min(found.count, addend)
  if receipt and not of_receipt(found, receipt, now) then
    given_back = 0
  end
  if given_back > 0 then
    found.count = found.count - given_back
    state = packed(found, found.count)
    if found.count == 0 then
      found = read(state, now, spec) -- the next hit begins another
    end
  end
  return {
    passed = true,
    state = state,
    remaining = math.max(0, spec.limit - found.count),
    reset = found.reset,
    retry = 0,
    counted = given_back,
    damaged = found.damaged,
  }
end

return fixed_window
