-- The end of the script that Redis runs: reads what is charged, settles it, writes the changes.
-- KEYS: the counter of each hit, request after request; behind them, only to name them, the keys of what is held.
-- ARGV[1]: the time in microseconds, or "" for Redis' own.
-- ARGV[2]: the hits, as script.py packs them. Each request begins with the number of its hits (2 bytes). It is
-- settled at once if 32768 was added to that. A 0 begins a deadline instead, which holds for all requests behind
-- it; a deadline of 0 ends that. Each hit has limit, window, addend, algorithm, and mode with flags. By its flags
-- there follow the rest of its spec, the periods of its calendar, its receipt, and its lease with the length first.
-- ARGV[3]: the number of this call.
-- Returns one packed string, as script.py reads it: the number of the call, now, and the outcome of each hit. An
-- outcome is whether the hit is over, the remaining hits, the wait, how many hits were counted, and a 0. The wait is
-- until the counter is as new or, where the hit is over, until it would pass. If a hit has marks (1 damaged, 2 late),
-- a byte for each hit follows.
-- Requests are settled one after the other, each seeing what those before have counted.

local MAX_STATE = 4503599627370496 -- 2^52
local MAX_EXACT = 9007199254740992 -- 2^53
local SETTLED = 32768
local PLAIN_BYTES = 18

local now = tonumber(ARGV[1])
if not now then
  local time = redis.call("TIME")
  now = time[1] * 1000000 + time[2]
end

-- A key's state: a number or a string, or false for a new counter. What no algorithm can have written counts as
-- new, and so does a key of another type, on which GET fails. SET replaces both.
local states = {}
local function read(key)
  local state = states[key]
  if state == nil then
    state = redis.pcall("GET", key)
    if type(state) ~= "string" then
      state = false
    elseif string.match(state, "^[1-9]%d*$") then
      state = tonumber(state)
      state = state < MAX_STATE and state
    end
    states[key] = state
  end
  return state
end

local function text_of(number)
  return string.format("%.0f", number)
end

-- Expiry only collects garbage. A state is kept for a second longer than it matters, for clocks that step back.
local function expiry(life)
  return text_of(math.ceil(math.max(0, math.min(life, MAX_EXACT)) / 1000) + 1000)
end

local keys, sub, pack = KEYS, string.sub, struct.pack -- of what each hit needs, locals are found sooner
local packed, at, index, late = ARGV[2], 1, 0, false
local changed, added, outcomes, marks = {}, {}, {}, {}

-- How plain hits count at this moment, by their bytes. `first` and the count together are the state of a counter.
local ways = setmetatable({}, { __index = function(ways, bytes)
  local limit, window, addend, algorithm = struct.unpack(">I4dI4B", bytes)
  local first, reset, is_over = algorithms[algorithm].moment(now, window)
  local way = { first = first, reset = reset, is_over = is_over, addend = addend, text = text_of(addend) }
  way.least, way.most = first + addend, first + limit
  ways[bytes] = way
  return way
end })

-- Whether a number that Redis had before a hit stands for a new counter.
local function is_new(before, way)
  return before == 0 or (before > 0 and before < MAX_STATE and way.is_over(before))
end

-- Of each hit of a request that `increment` has counted in Redis, the number before it; false if Redis was not asked.
local had = {}

-- Takes back what `increment` has done, the last first. The hits begin at a byte.
local function undo(count, from)
  for number = count, 1, -1 do
    local start = from + (number - 1) * PLAIN_BYTES
    local key, way = KEYS[index + number], ways[string.sub(packed, start, start + PLAIN_BYTES - 1)]
    local before = had[number]
    if not before then
      states[key], added[key] = states[key] - way.addend, added[key] - way.addend
    else
      states[key] = nil
      if before == 0 then
        redis.call("DEL", key)
      elseif is_new(before, way) then
        -- It counts again only if the clock steps back.
        redis.call("SET", key, text_of(before), "PX", 1000)
      else
        redis.call("DECRBY", key, way.text)
      end
    end
  end
end

-- The short way for a request of plain hits that all pass, as nearly all do. The first hit on a key takes one
-- INCRBY. The reply tells the state before it, and so whether the hit passes. Further hits on the key are added
-- together, and written at the end. Returns where the hits end. Returns nothing if the request is of another kind;
-- then nothing has changed.
local function increment(count, from)
  local at = from
  for number = 1, count do
    local position = index + number
    local key, way = keys[position], ways[sub(packed, at, at + PLAIN_BYTES - 1)]
    local state, addend = states[key], way.addend
    if state then
      if type(state) ~= "number" then
        return undo(number - 1, from)
      end
      state, had[number] = state + addend, false
      added[key] = (added[key] or 0) + addend
    else
      state = redis.pcall("INCRBY", key, way.text)
      if type(state) ~= "number" then
        return undo(number - 1, from)
      end
      had[number] = state - addend
    end
    states[key] = state
    if state <= way.least or state > way.most then
      local before = had[number]
      if not before or not is_new(before, way) or way.least > way.most then
        return undo(number, from)
      end
      way.new, way.expiry = way.new or text_of(way.least), way.expiry or expiry(way.reset)
      redis.call("SET", key, way.new, "PX", way.expiry)
      state = way.least
      states[key] = state
    end
    outcomes[position] = pack(">BI4I8I8B", 0, way.most - state, way.reset, addend, 0)
    at = at + PLAIN_BYTES
  end
  return at
end

-- Lets a state count as new that cannot be read, unless this call has written it.
local function doubt(key)
  if not changed[key] then
    states[key] = false
  end
end

local function write_outcome(position, step)
  local passed = step.passed
  local wait = passed and step.reset or step.retry
  outcomes[position] = pack(">BI4I8I8B", passed and 0 or 1, step.remaining, wait, step.counted, 0)
  if step.damaged or step.late then
    marks[position] = (step.damaged and 1 or 0) + (step.late and 2 or 0)
  end
end

local long_way
while at <= #packed do
  local high, low = string.byte(packed, at, at + 1)
  local count, after = high * 256 + low, nil
  at = at + 2
  if count == 0 then
    local not_after
    not_after, at = struct.unpack(">d", packed, at)
    late = not_after > 0 and now > not_after
    after = at
  elseif count >= SETTLED then
    count = count - SETTLED
  elseif not late then
    after = increment(count, at)
  end
  if after then
    at = after
  else
    long_way = long_way or load_long_way(packed, now, read, doubt)
    local steps, changes
    steps, changes, at = long_way(index, count, at, late)
    for key, step in pairs(changes) do
      states[key] = step.state
      changed[key] = step
    end
    for number, step in ipairs(steps) do
      write_outcome(index + number, step)
    end
  end
  index = index + count
end

for key, count in pairs(added) do
  if count > 0 and not changed[key] then
    redis.call("INCRBY", key, text_of(count))
  end
end
for key, step in pairs(changed) do
  local state = type(states[key]) == "number" and text_of(states[key]) or states[key]
  redis.call("SET", key, state, "PX", expiry(step.life or step.reset))
end

local head = pack(">I8I8", tonumber(ARGV[3] or 0), now)
if next(marks) then
  for position = 1, index do
    outcomes[index + position] = string.char(marks[position] or 0)
  end
end
return head .. table.concat(outcomes)
