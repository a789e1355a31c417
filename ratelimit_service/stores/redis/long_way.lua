-- The long way of a request: unpacks its hits with all that may be said of them, and settles them by the rule of
-- passing. Few calls take it. Expects what `load_long_way` is given: the packed hits, the time, `read`, which gives
-- a key's state, and `doubt`, which lets a state that cannot be read count as new. No redis.call here.

local MAX_WAIT = 36028797018963968 -- 2^55: three of the longest windows
local UNDO = 3
local GRANT, ADVANCE = 4, 5
local NO_LEASE = string.rep("\0", 8)

local HAS_HOLD, SETTLES, CHARGED = 2, 4, 8

-- Loaded when a hit is met that holds, or has room only beside what is held.
local holds
local function held(key, id)
  holds = holds or load_holds(now)
  return holds.read(key, id)
end
local holding = setmetatable({}, { __index = function(holding, name)
  for each, charge_or_refund in pairs(load_holding(held)) do
    holding[each] = charge_or_refund
  end
  return rawget(holding, name)
end })

local settle = load_settle(holding)

-- What a hit holds, or settles, as it stands behind the rest of its spec.
local function unpack_hold(spec, at)
  local flags, hold
  flags, at = struct.unpack(">B", packed, at)
  spec.holds = flags % 2 == 1
  if flags % 4 >= HAS_HOLD then
    hold = { settles = flags % 8 >= SETTLES, charged = flags >= CHARGED }
    hold.ttl, at = struct.unpack(">d", packed, at)
  end
  return hold, at
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

local function unpack_hit(key, at)
  local hit = { key = key, lease = NO_LEASE }
  local spec, flags = { rate = 0, tick = 0, buckets = 0 }
  hit.spec = spec
  spec.limit, spec.window, hit.addend, spec.algorithm, flags, at = struct.unpack(">I4dI4BB", packed, at)
  hit.mode = flags % 4
  if spec.algorithm >= 128 then
    spec.algorithm, hit.mode = spec.algorithm - 128, GRANT
  elseif spec.algorithm >= 64 then
    spec.algorithm, hit.mode = spec.algorithm - 64, ADVANCE
  end
  hit.count_denied = flags % 8 >= 4
  hit.refund = flags % 16 >= 8
  hit.joined = flags % 32 >= 16
  if flags % 64 >= 32 then
    local variant
    spec.rate, spec.tick, spec.buckets, variant, at = struct.unpack(">I4BI2B", packed, at)
    spec.first_hit, spec.stepped, spec.queue = variant % 2 == 1, variant % 4 >= 2, variant % 8 >= 4
    if variant % 16 >= 8 then
      for _, name in ipairs(own_parameters[spec.algorithm]) do
        spec[name], at = struct.unpack(">d", packed, at)
      end
    end
    if variant >= 16 then
      hit.hold, at = unpack_hold(spec, at)
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
  return hit, at
end

-- After the deadline nobody waits for the answer. Only what is given back still counts.
local LATE = { late = true, passed = true, remaining = 0, reset = 0, retry = 0, counted = 0 }
local function settle_late(hits)
  local refunds, steps = {}, {}
  for position, hit in ipairs(hits) do
    steps[position] = LATE
    if hit.refund then
      table.insert(refunds, hit)
    end
  end
  local refunded, changes = settle(refunds, read, now)
  for position, hit in ipairs(hits) do
    if hit.refund then
      steps[position] = table.remove(refunded, 1)
    end
  end
  return steps, changes
end

local function settled(hits, late)
  local steps, changes = (late and settle_late or settle)(hits, read, now)
  for position, step in ipairs(steps) do
    local limit = hits[position].spec.limit
    assert(step.remaining >= 0 and step.remaining <= limit and step.counted >= 0)
    assert(step.reset >= 0 and step.reset < MAX_WAIT and step.retry >= 0 and step.retry < MAX_WAIT)
  end
  return steps, changes
end

-- Settles a request. A state that makes this fail counts as new, so that it costs neither this request nor
-- those beside it an answer. States that this call has counted are never the cause.
local function settle_safely(hits, late)
  local found, steps, changes = pcall(settled, hits, late)
  if found then
    return steps, changes
  end
  for _, hit in ipairs(hits) do
    doubt(hit.key)
  end
  return settled(hits, late)
end

-- Settles the hits that begin at a byte. Returns their steps, the steps to write, and where the hits end. If it is
-- late, nobody waits for the answer.
return function(index, count, from, late)
  local hits = {}
  for number = 1, count do
    hits[number], from = unpack_hit(KEYS[index + number], from)
  end
  local steps, changes = settle_safely(hits, late)
  if holds then
    holds.write(changes)
  end
  return steps, changes, from
end
