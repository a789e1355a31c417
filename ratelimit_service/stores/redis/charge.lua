-- The end of the script that Redis runs: reads what is charged, settles it, writes the changes.
-- KEYS: the counter of each hit, request after request. ARGV: the time in microseconds, or "" for
-- Redis' own; then the hits packed: for each request the number of its hits (2 bytes), for each
-- hit limit, window, addend, algorithm, and mode with flags (4 count_denied, 8 refund).
-- Returns flat integers: now, then for each hit over (0/1), left, reset, counted.
-- Requests are settled one after the other, each seeing what those before have counted.

local MAX_STATE = 4503599627370496 -- 2^52

local now = tonumber(ARGV[1])
if not now then
  local time = redis.call("TIME")
  now = time[1] * 1000000 + time[2]
end

-- A value that is no state (somebody else's, or damage) counts as a new counter. pcall: GET
-- fails on a key of another type, and SET replaces it.
local states = {}
local function read(key)
  if states[key] == nil then
    local value = redis.pcall("GET", key)
    local state = type(value) == "string" and string.match(value, "^%d+$") and tonumber(value)
    states[key] = state and state < MAX_STATE and state or false
  end
  return states[key]
end

-- Expiry is garbage collection, never meaning: a second of slack for clocks that step back.
local function write(key, step)
  redis.call("SET", key, string.format("%.0f", step.state), "PX", math.ceil(step.reset / 1000) + 1000)
end

local packed, at, index = ARGV[2], 1, 0
local changed, reply = {}, { now }

local function tell(place, step)
  place = place * 4 - 2
  reply[place] = step.passed and 0 or 1
  reply[place + 1] = step.left
  reply[place + 2] = step.reset
  reply[place + 3] = step.counted
end

-- Takes back what `increment` has done, the last first.
local function undo(done)
  for number = #done, 1, -1 do
    local each = done[number]
    states[each.key] = each.state
    changed[each.key] = each.change
    if each.before == 0 then
      redis.call("DEL", each.key)
    elseif each.anew then
      -- Of a window that is over, which counts again only if the clock steps back.
      redis.call("SET", each.key, string.format("%.0f", each.before), "PX", 1000)
    elseif each.addend then
      redis.call("DECRBY", each.key, each.addend)
    end
  end
end

-- The short way for a request of plain hits which all pass, as nearly all do: one INCRBY for the
-- first hit on a key, whose reply tells the state before it, and so whether the hit passes; no
-- command for the others. Returns where the hits end, or nothing if the request is of another
-- kind: then nothing has been done.
local function increment(count, from)
  local done = {}
  for number = 1, count do
    local key = KEYS[index + number]
    local limit, window, addend, algorithm, flags
    limit, window, addend, algorithm, flags, from = struct.unpack(">I4dI4BB", packed, from)
    local rules = algorithms[algorithm]
    if not rules.adds or flags >= 4 or addend == 0 then
      return undo(done)
    end
    local before = states[key]
    local each = { key = key, state = before, change = changed[key] }
    local after
    if before == nil then
      after = redis.pcall("INCRBY", key, addend)
      if type(after) ~= "number" then
        return undo(done)
      end
      before = after - addend
      each.before, each.addend = before, addend
    end
    done[number] = each
    if before and (before < 0 or before >= MAX_STATE) then
      return undo(done)
    end
    local step = rules.charge(before ~= 0 and before, now, addend, limit, window, false)
    if not step.passed then
      return undo(done)
    end
    if after and (before == 0 or step.state ~= after) then
      each.anew = true
      write(key, step)
    elseif not after then
      changed[key] = step
    end
    states[key] = step.state
    tell(index + number, step)
  end
  return from
end

while at <= #packed do
  local count
  count, at = struct.unpack(">I2", packed, at)
  local after = increment(count, at)
  if after then
    at = after
  else
    local hits = {}
    for number = 1, count do
      local hit = { key = KEYS[index + number] }
      local algorithm, flags
      hit.limit, hit.window, hit.addend, algorithm, flags, at = struct.unpack(">I4dI4BB", packed, at)
      hit.algorithm = algorithm
      hit.mode = flags % 4
      hit.count_denied = flags % 8 >= 4
      hit.refund = flags >= 8
      hits[number] = hit
    end

    local steps, changes = settle(hits, read, now)

    for key, step in pairs(changes) do
      states[key] = step.state
      changed[key] = step
    end
    for number, step in ipairs(steps) do
      tell(index + number, step)
    end
  end
  index = index + count
end

for key, step in pairs(changed) do
  write(key, step)
end

return reply
