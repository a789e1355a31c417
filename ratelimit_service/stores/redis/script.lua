-- The end of the script that Redis runs: reads what is charged, settles it, writes the changes.
-- KEYS: the counter of each hit, request after request.
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
local MAX_WAIT = 36028797018963968 -- 2^55: three of the longest windows
local SETTLED = 32768
local UNDO = 3
local NO_LEASE = string.rep("\0", 8)

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
    elseif string.match(state, "^%d+$") then
      state = tonumber(state)
      state = state < MAX_STATE and state
    end
    states[key] = state
  end
  return state
end

-- Expiry only collects garbage. A state is kept for a second longer than it matters, for clocks that step back.
local function write(key, step)
  local state = step.state
  if type(state) == "number" then
    state = string.format("%.0f", state)
  end
  local life = math.max(0, math.min(step.life or step.reset, MAX_EXACT))
  redis.call("SET", key, state, "PX", string.format("%.0f", math.ceil(life / 1000) + 1000))
end

local settle_hits
local function settle(hits, from, moment)
  settle_hits = settle_hits or load_settle()
  return settle_hits(hits, from, moment)
end

local packed, at, index = ARGV[2], 1, 0
local changed, told, marks = {}, {}, {}

local function tell(place, step)
  local passed = step.passed
  local wait = passed and step.reset or step.retry
  told[place] = struct.pack(">BI4I8I8B", passed and 0 or 1, step.remaining, wait, step.counted, 0)
  if step.damaged or step.late then
    marks[place] = (step.damaged and 1 or 0) + (step.late and 2 or 0)
  end
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
      -- Its window has ended: it counts again only if the clock steps back.
      redis.call("SET", each.key, string.format("%.0f", each.before), "PX", 1000)
    elseif each.addend then
      redis.call("DECRBY", each.key, each.addend)
    end
  end
end

-- The short way for a request of plain hits that all pass, as nearly all do. The first hit on a key takes one
-- INCRBY. The reply tells the state before it, and so whether the hit passes. Further hits on the key need no
-- command. Returns where the hits end. Returns nothing if the request is of another kind; then nothing has
-- changed.
local plain = {}
local function increment(count, from)
  local done = {}
  for number = 1, count do
    local key = KEYS[index + number]
    local addend, algorithm, _
    plain.limit, plain.window, addend, algorithm, _, from = struct.unpack(">I4dI4BB", packed, from)
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
    if before and (type(before) ~= "number" or before < 0 or before >= MAX_STATE) then
      return undo(done)
    end
    local step = algorithms[algorithm].charge(before ~= 0 and before, now, addend, plain, false)
    if not step.passed or step.damaged then
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

local function periods_of(number, first, this, following, ending)
  return function(moment)
    if moment < this then
      return number - 1, first, this, following
    elseif moment < following then
      return number, this, following, ending
    end
    local last = moment < ending and ending or moment + ending - following
    return number + 1, following, last, last + ending - following
  end
end

local function unpack_hit(key)
  local hit = { key = key, lease = NO_LEASE }
  local spec, flags = { rate = 0, tick = 0, buckets = 0 }
  hit.spec = spec
  spec.limit, spec.window, hit.addend, spec.algorithm, flags, at = struct.unpack(">I4dI4BB", packed, at)
  hit.mode = flags % 4
  hit.count_denied = flags % 8 >= 4
  hit.refund = flags % 16 >= 8
  hit.joined = flags % 32 >= 16
  if flags % 64 >= 32 then
    local variant
    spec.rate, spec.tick, spec.buckets, variant, at = struct.unpack(">I4BI2B", packed, at)
    spec.first_hit, spec.stepped, spec.queue = variant % 2 == 1, variant % 4 >= 2, variant % 8 >= 4
    if variant >= 8 then
      for _, name in ipairs(own_parameters[spec.algorithm]) do
        spec[name], at = struct.unpack(">d", packed, at)
      end
    end
  end
  if flags % 128 >= 64 then
    local number, first, this, following, ending
    number, first, this, following, ending, at = struct.unpack(">I4dddd", packed, at)
    spec.periods = periods_of(number, first, this, following, ending)
  end
  if hit.refund and hit.mode == UNDO then
    local receipt = {}
    receipt.at_us, receipt.until_us, at = struct.unpack(">dd", packed, at)
    hit.receipt = receipt
  end
  if flags >= 128 then
    hit.lease, at = struct.unpack(">I2c0", packed, at)
  elseif hit.refund then
    hit.lease = ""
  end
  return hit
end

-- After the deadline nobody waits for the answer. Only what is given back still counts.
local late = false
local LATE = { late = true, passed = true, remaining = 0, reset = 0, retry = 0, counted = 0 }
local function settle_late(hits)
  local refunds, steps = {}, {}
  for place, hit in ipairs(hits) do
    steps[place] = LATE
    if hit.refund then
      table.insert(refunds, hit)
    end
  end
  local refunded, changes = settle(refunds, read, now)
  for place, hit in ipairs(hits) do
    if hit.refund then
      steps[place] = table.remove(refunded, 1)
    end
  end
  return steps, changes
end

local function settled(hits)
  local steps, changes = (late and settle_late or settle)(hits, read, now)
  for place, step in ipairs(steps) do
    local limit = hits[place].spec.limit
    assert(step.remaining >= 0 and step.remaining <= limit and step.counted >= 0)
    assert(step.reset >= 0 and step.reset < MAX_WAIT and step.retry >= 0 and step.retry < MAX_WAIT)
  end
  return steps, changes
end

-- Settles a request. A state that makes this fail counts as new, so that it costs neither this request nor
-- those beside it an answer. States that this call has counted are never the cause.
local function settle_safely(hits)
  local found, steps, changes = pcall(settled, hits)
  if found then
    return steps, changes
  end
  for _, hit in ipairs(hits) do
    if not changed[hit.key] then
      states[hit.key] = false
    end
  end
  return settled(hits)
end

while at <= #packed do
  local count, after
  count, at = struct.unpack(">I2", packed, at)
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
    local hits = {}
    for number = 1, count do
      hits[number] = unpack_hit(KEYS[index + number])
    end

    local steps, changes = settle_safely(hits)

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

local head = struct.pack(">I8I8", tonumber(ARGV[3] or 0), now)
if next(marks) then
  for place = 1, #KEYS do
    told[#KEYS + place] = string.char(marks[place] or 0)
  end
end
return head .. table.concat(told)
