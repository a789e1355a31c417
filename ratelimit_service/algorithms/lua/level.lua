-- What is in a bucket: the same arithmetic as level.py; see there. A state is a string, or false
-- for a new counter. No redis.call here.

local SIZE = 26
local KEPT = 600000000
local MAX_TICK = 12
local MAX_EXACT = 9007199254740992 -- 2^53

local function since_of(bucket, last)
  local spec = bucket.spec
  if spec.stepped then
    return math.floor(bucket.now / bucket.ticks) - math.floor(last / bucket.ticks), spec.rate * bucket.ticks
  end
  return bucket.now - last, spec.rate
end

local function leaked(bucket, since_us)
  local since, rate = since_of(bucket, math.floor(since_us / bucket.tick))
  return math.max(0, since) * rate
end

local function leak(bucket, last, level)
  if last - bucket.now >= bucket.ticks then
    bucket.damaged = true
    return
  end
  if level == 0 then
    return -- as new, also if the clock has stepped back since
  end
  bucket.now = math.max(bucket.now, last)
  local since, rate = since_of(bucket, last)
  if rate == 0 then
    bucket.level = level
  elseif since < math.ceil(level / rate) then
    bucket.level = level - since * rate
  end
end

local function forgotten(exponent, hits, fraction, last, rate, spec)
  if rate == 0 then
    return MAX_EXACT
  end
  local tick = 10 ^ exponent
  local ticks = math.ceil(spec.window / tick)
  local level, moment = hits * ticks + fraction, last
  if spec.stepped then
    moment = (math.floor(last / ticks) + math.ceil(level / (rate * ticks))) * ticks
  else
    moment = last + math.ceil(level / rate)
  end
  return math.max(moment * tick, last * tick + KEPT)
end

local function read(mark, state, now, spec)
  local tick = 10 ^ spec.tick
  local bucket = { mark = mark, tick = tick, at = now, level = 0, spec = spec }
  bucket.now, bucket.ticks = math.floor(now / tick), math.ceil(spec.window / tick)
  if not (type(state) == "string" and #state == SIZE and string.sub(state, 1, 1) == mark) then
    return bucket
  end
  local exponent, hits, fraction, last, rate = struct.unpack(">BI4ddI4", state, 2)
  if exponent > MAX_TICK or not (fraction >= 0 and fraction < MAX_EXACT and last >= 0 and last < MAX_EXACT) then
    return bucket
  end
  if rate ~= spec.rate and now >= forgotten(exponent, hits, fraction, last, rate, spec) then
    return bucket
  end
  if exponent > spec.tick then
    local finer = 10 ^ (exponent - spec.tick)
    fraction, last = math.min(fraction * finer, bucket.ticks), last * finer
  elseif exponent < spec.tick then
    local coarser = 10 ^ (spec.tick - exponent)
    fraction = math.min(math.ceil(fraction / coarser), bucket.ticks)
    last = math.floor(last / coarser)
  end
  hits = math.min(hits, spec.limit + spec.rate)
  leak(bucket, last, hits * bucket.ticks + fraction)
  return bucket
end

local function state_of(bucket)
  local hits = math.floor(bucket.level / bucket.ticks)
  local fraction = bucket.level - hits * bucket.ticks
  local spec = bucket.spec
  return struct.pack(">c1BI4ddI4", bucket.mark, spec.tick, hits, fraction, bucket.now, spec.rate)
end

local function used(bucket)
  return math.ceil(bucket.level / bucket.ticks)
end

-- The last moment, in whole ticks, that is exact as a double.
local function ends(bucket)
  return math.floor((MAX_EXACT - 1) / bucket.tick) * bucket.tick
end

local function until_level(bucket, level, rate)
  local spec, excess = bucket.spec, bucket.level - level
  if excess <= 0 then
    return 0
  elseif rate == 0 then
    return spec.window
  end
  local moment
  if spec.stepped then
    local steps = math.ceil(excess / (rate * bucket.ticks))
    moment = (math.floor(bucket.now / bucket.ticks) + steps) * bucket.ticks
  else
    moment = bucket.now + math.ceil(excess / rate)
  end
  return math.min(moment * bucket.tick, ends(bucket)) - bucket.at
end

-- How long a state matters. That is longer than at this rate, since the rule's rate may be lowered.
local function life_of(bucket, reset)
  return math.max(reset, math.min(until_level(bucket, 0, 1), KEPT))
end

local function charge(mark, state, now, addend, spec)
  local bucket = read(mark, state, now, spec)
  local limit = spec.limit
  local remaining = limit - used(bucket)
  local passed, retry = addend <= remaining, 0
  if not passed then
    local room = addend <= limit and limit - addend or 0
    retry = until_level(bucket, room * bucket.ticks, spec.rate)
  elseif addend > 0 then
    bucket.level = bucket.level + addend * bucket.ticks
    state = state_of(bucket)
  end
  local reset = until_level(bucket, 0, spec.rate)
  return {
    passed = passed,
    state = state,
    remaining = passed and remaining - addend or math.max(0, remaining),
    reset = reset,
    life = life_of(bucket, reset),
    retry = retry,
    counted = passed and addend or 0,
    damaged = bucket.damaged,
  }
end

local function refund(mark, state, now, addend, spec, receipt)
  local bucket = read(mark, state, now, spec)
  local given = addend * bucket.ticks
  local before = now + until_level(bucket, 0, spec.rate)
  if receipt and (before ~= receipt.until_us or before >= ends(bucket)) then
    given = spec.queue and 0 or math.max(0, given - leaked(bucket, receipt.at_us))
  end
  local given_back = math.min(math.ceil(given / bucket.ticks), used(bucket))
  if given_back > 0 then
    bucket.level = math.max(0, bucket.level - given)
    state = state_of(bucket)
  end
  local reset = until_level(bucket, 0, spec.rate)
  return {
    passed = true,
    state = state,
    remaining = math.max(0, spec.limit - used(bucket)),
    reset = reset,
    life = life_of(bucket, reset),
    retry = 0,
    counted = given_back,
    damaged = bucket.damaged,
  }
end

local level = {}

-- The kind of bucket whose states begin with this letter.
function level.of(mark)
  return {
    charge = function(state, now, addend, spec)
      return charge(mark, state, now, addend, spec)
    end,
    refund = function(state, now, addend, spec, _, receipt)
      return refund(mark, state, now, addend, spec, receipt)
    end,
  }
end

return level
