-- sliding_window: the same arithmetic as sliding_window.py; see there. A state is a string, or
-- false for a new counter. No redis.call here.

local all_of = table.unpack or unpack -- Lua 5.1, and those after it
local MAX_COUNT = 4294967295 -- 2^32 - 1
local MAX_EXACT = 9007199254740992 -- 2^53
local HEAD = 8
local FORMS = { [1] = ">B", [2] = ">I2", [4] = ">I4" }

-- Two counters

local function until_weight(window, count, room)
  if count <= room then
    return 0
  end
  return window.ticks + 1 - math.ceil((room + 1) * window.ticks / count)
end

local function after(window, ticks)
  return math.max(0, ticks - window.elapsed) * window.tick + window.ahead
end

-- How much of this count weighs with so many ticks left, rounded down. Where the product is too
-- large to be exact, it is made and divided bit by bit.
local function weight(count, ticks_to_go, ticks)
  if count < MAX_EXACT / ticks then
    return math.floor(count * ticks_to_go / ticks)
  end
  local weighed, rest, bit = 0, 0, 2 ^ 31
  while bit >= 1 do
    weighed, rest = weighed * 2, rest * 2
    if count >= bit then
      count, rest = count - bit, rest + ticks_to_go
    end
    weighed, rest, bit = weighed + math.floor(rest / ticks), rest % ticks, bit / 2
  end
  return weighed
end

local two = {}

function two.read(state, now, spec)
  local tick = 10 ^ spec.tick
  local window = { before = 0, now = 0, ahead = 0, at = now, limit = spec.limit, length = spec.window }
  window.tick, window.ticks = tick, math.ceil(spec.window / tick)
  window.number = math.floor(now / spec.window)
  if state and #state == 17 and string.sub(state, 1, 1) == "w" then
    local stored, before, count = struct.unpack(">dI4I4", state, 2)
    local ahead = stored - window.number
    window.damaged = ahead > 1
    if ahead == 1 and before + count > 0 then -- else as new, also if the clock has stepped back
      window.number = window.number + 1
      window.ahead = window.number * spec.window - now
    end
    if ahead == 0 or ahead == 1 then
      window.before, window.now = before, count
    elseif ahead == -1 then
      window.before = count
    end
  end
  window.elapsed = math.floor((now + window.ahead - window.number * spec.window) / tick)
  return window
end

function two.state(window)
  return struct.pack(">c1dI4I4", "w", window.number, window.before, window.now)
end

function two.count(window)
  return weight(window.before, window.ticks - window.elapsed, window.ticks) + window.now
end

function two.add(window, addend)
  if two.count(window) == 0 then
    window.before = 0 -- what weighs nothing is as good as gone
  end
  window.now = math.min(window.now + addend, MAX_COUNT)
end

function two.take_off(window, addend)
  if two.count(window) == 0 then
    return 0
  end
  local given_back = math.min(window.now, addend)
  local older = math.min(window.before, addend - given_back)
  window.now, window.before = window.now - given_back, window.before - older
  return given_back + older
end

function two.undo(window, addend, receipt)
  local ago, given_back = window.number + 1 - math.floor(receipt.until_us / window.length), 0
  if ago == 0 then
    given_back = math.min(window.now, addend)
    window.now = window.now - given_back
  elseif ago == 1 then
    given_back = math.min(window.before, addend)
    window.before = window.before - given_back
  end
  return given_back
end

function two.reset(window)
  return (window.number + 1) * window.length - window.at
end

-- How long a state matters: this window's count weighs until the end of the next.
function two.life(window)
  return two.reset(window) + window.length
end

function two.retry(window, addend)
  if addend > window.limit then
    return window.length
  end
  local room = window.limit - window.now - addend
  if room >= 0 then
    return after(window, until_weight(window, window.before, room))
  end
  return after(window, until_weight(window, window.now, window.limit - addend) + window.ticks)
end

-- Buckets

local parts = {}

function parts.read(state, now, spec)
  local part = math.ceil(spec.window / spec.buckets)
  local window = { counts = { 0 }, at = now, part = part, limit = spec.limit, length = spec.window }
  window.number, window.buckets, window.total = math.floor(now / part), spec.buckets, 0
  if not (state and #state > HEAD and string.sub(state, 1, 1) == "s") then
    return window
  end
  local size = string.byte(state, 2)
  local form = FORMS[size]
  if not form or (#state - HEAD) % size ~= 0 then
    return window
  end
  local number = struct.unpack(">I6", state, 3)
  window.damaged = number * part - now >= spec.window
  local age = math.max(0, window.number - number)
  if window.damaged or age > spec.buckets then
    return window
  end
  local counts, total = {}, 0
  for place = 1, age do
    counts[place] = 0
  end
  local kept = math.min((#state - HEAD) / size, spec.buckets + 1 - age)
  if size == 1 then
    for place = 1, kept do
      local count = string.byte(state, HEAD + place)
      counts[age + place], total = count, total + count
    end
  else
    for place = 1, kept do
      local count = struct.unpack(form, state, HEAD + (place - 1) * size + 1)
      counts[age + place], total = count, total + count
    end
  end
  if total > 0 then -- else as new, also if the clock has stepped back
    window.number, window.counts, window.total = math.max(number, window.number), counts, total
  end
  return window
end

function parts.state(window)
  local counts, last, most = window.counts, 1, 0
  for place = 1, #counts do
    local count = counts[place]
    if count > 0 then
      last = place
      if count > most then
        most = count
      end
    end
  end
  local size = most < 256 and 1 or most < 65536 and 2 or 4
  local head = struct.pack(">c1BI6", "s", size, window.number)
  if size == 1 and last <= 200 then
    return head .. string.char(all_of(counts, 1, last))
  end
  local packed, form = { head }, FORMS[size]
  for place = 1, last do
    packed[place + 1] = struct.pack(form, counts[place])
  end
  return table.concat(packed)
end

function parts.count(window)
  return window.total
end

function parts.add(window, addend)
  local before = window.counts[1]
  window.counts[1] = math.min(before + addend, MAX_COUNT)
  window.total = window.total + window.counts[1] - before
end

function parts.take_off(window, addend)
  local rest = addend
  for place, count in ipairs(window.counts) do
    local taken = math.min(count, rest)
    window.counts[place], rest = count - taken, rest - taken
  end
  window.total = window.total - addend + rest
  return addend - rest
end

function parts.undo(window, addend, receipt)
  local number = math.floor(receipt.until_us / window.part) - window.buckets - 1
  local place = window.number - number + 1
  local count = window.counts[place]
  if not count then
    return 0
  end
  local given_back = math.min(count, addend)
  window.counts[place], window.total = count - given_back, window.total - given_back
  return given_back
end

local function gone(window, place)
  return (window.number - place + window.buckets + 2) * window.part - window.at
end

function parts.reset(window)
  for place, count in ipairs(window.counts) do
    if count > 0 then
      return gone(window, place)
    end
  end
  return 0
end

function parts.retry(window, addend)
  if addend > window.limit then
    return window.length
  end
  local excess, place = window.total + addend - window.limit, #window.counts + 1
  while excess > 0 do
    place = place - 1
    excess = excess - window.counts[place]
  end
  return gone(window, place)
end

local sliding_window = {}

function sliding_window.charge(state, now, addend, spec, force)
  local kind = spec.buckets > 0 and parts or two
  local window = kind.read(type(state) == "string" and state, now, spec)
  local remaining = spec.limit - kind.count(window)
  -- A counter at its top may have counted more than it can hold: there a peek is over.
  local least = addend == 0 and spec.limit == MAX_COUNT and 1 or addend
  local passed = least <= remaining
  local retry = passed and 0 or kind.retry(window, least)
  local counted = 0
  if addend > 0 and (passed or force) then
    counted = addend
    kind.add(window, addend)
    state = kind.state(window)
  end
  return {
    passed = passed,
    state = state,
    remaining = passed and remaining - addend or math.max(0, remaining),
    reset = kind.reset(window),
    life = kind.life and kind.life(window),
    retry = retry,
    counted = counted,
    damaged = window.damaged,
  }
end

function sliding_window.refund(state, now, addend, spec, _, receipt)
  local kind = spec.buckets > 0 and parts or two
  local window = kind.read(type(state) == "string" and state, now, spec)
  local given_back = receipt and kind.undo(window, addend, receipt) or kind.take_off(window, addend)
  if given_back > 0 then
    state = kind.state(window)
    if kind.count(window) == 0 then
      window = kind.read(state, now, spec) -- the next hit begins another
    end
  end
  return {
    passed = true,
    state = state,
    remaining = math.max(0, spec.limit - kind.count(window)),
    reset = kind.reset(window),
    life = kind.life and kind.life(window),
    retry = 0,
    counted = given_back,
    damaged = window.damaged,
  }
end

return sliding_window
