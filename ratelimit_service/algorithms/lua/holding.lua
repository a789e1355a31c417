-- What is held beside a counter: the same as holding.py; see there. Expects the tables `algorithms` and `held`, the
-- function that gives what an id holds, or with "" all that is held. No redis.call here.

local MOST_HOLDS = 10000
local SETTLED = -1
local IN_TURN = 3
local SECOND = 1000000

local function amount(key, id, changes)
  local change = changes[(id == "" and "\0h" or "\0i" .. id) .. key]
  if change then
    return change.state
  end
  return held(key, id)
end

local function note(hit, hits, life, total, changes)
  changes["\0i" .. hit.lease .. hit.key] = { key = hit.key, id = hit.lease, state = hits, life = life }
  changes["\0h" .. hit.key] = { key = hit.key, id = "", state = total }
end

local function together(hit, state, now, hits, beside, force)
  local charge, spec = algorithms[hit.spec.algorithm].charge, hit.spec
  local both = charge(state, now, beside + hits, spec, force, hit.lease)
  if not both.passed then
    local peek = charge(state, now, 0, spec, false, "")
    local alone = charge(state, now, hits, spec, false, "").retry
    both.remaining = peek.passed and math.max(0, peek.remaining - beside) or 0
    both.retry = math.min(both.retry, math.max(alone, SECOND))
  end
  return both
end

local function charge_beside(hit, state, now, addend, beside, force, lease)
  local charge, spec = algorithms[hit.spec.algorithm].charge, hit.spec
  if beside == 0 then
    return charge(state, now, addend, spec, force, lease)
  end
  local both = together(hit, state, now, addend, beside, force)
  if not both.passed and both.counted == 0 then
    both.state = state
    return both
  end
  local step = charge(state, now, addend, spec, force, lease)
  step.passed, step.remaining, step.retry = both.passed, both.remaining, both.retry
  return step
end

local function settle_hold(hit, state, now, changes, total, own)
  local charge = algorithms[hit.spec.algorithm].charge
  local beside = hit.spec.holds and total or 0
  local turned = hit.mode == IN_TURN and own == 0
  if own == SETTLED or (turned and not charge_beside(hit, state, now, hit.addend, beside, false, hit.lease).passed) then
    return { passed = false, state = state, remaining = 0, reset = 0, retry = 0, counted = 0 }
  end
  local step = charge(state, now, hit.addend, hit.spec, true, "")
  if step.counted == 0 and step.remaining > 0 and not step.passed then
    step = charge(state, now, step.remaining, hit.spec, false, "")
  end
  if hit.hold.ttl > 0 then
    note(hit, SETTLED, hit.hold.ttl, total - own, changes)
  end
  step.passed, step.remaining, step.retry = own > 0, math.min(own, hit.spec.limit), 0
  return step
end

local function counts_for(hits, spec, at)
  local charge = algorithms[spec.algorithm].charge
  local state = charge(false, at, hits, spec, true, "").state
  return charge(state, at, spec.limit, spec, false, "").retry
end

local function reserve(hit, state, now, changes, total, own)
  local spec, hits = hit.spec, hit.addend
  local holds = hits > 0 and spec.holds and hit.hold.ttl > 0
  if holds then
    hits = math.max(hits, math.ceil(spec.limit / MOST_HOLDS))
  end
  local beside = spec.holds and total - math.max(0, own) or 0
  local step = together(hit, state, now, hits, beside, false)
  if holds and own == SETTLED then
    step.passed = false
  end
  local more = 0
  if step.passed and holds then
    local life = hit.hold.ttl
    if hit.hold.charged then
      life = life + counts_for(hits, spec, now + life)
    end
    note(hit, hits, life, beside + hits, changes)
    more = math.max(0, hits - math.max(0, own))
  end
  step.state, step.counted = state, more
  return step
end

local holding = {}

function holding.knows(hit, changes)
  return amount(hit.key, hit.lease, changes) ~= 0
end

function holding.charge(hit, state, now, changes)
  if not hit.hold then
    local total = amount(hit.key, "", changes)
    return charge_beside(hit, state, now, hit.addend, total, hit.count_denied, hit.lease)
  end
  local own = amount(hit.key, hit.lease, changes)
  local total = amount(hit.key, "", changes)
  return (hit.hold.settles and settle_hold or reserve)(hit, state, now, changes, total, own)
end

function holding.refund(hit, state, now, changes)
  local refund = algorithms[hit.spec.algorithm].refund
  local total = amount(hit.key, "", changes)
  local step, given
  if hit.hold then
    local own = amount(hit.key, hit.lease, changes)
    given = math.min(math.max(0, own), hit.addend)
    if given > 0 then
      total = total - given
      note(hit, own - given, nil, total, changes)
    end
    step = refund(state, now, 0, hit.spec, "")
    step.counted = given
  else
    step = refund(state, now, hit.addend, hit.spec, hit.lease, hit.receipt)
  end
  step.remaining = math.max(0, step.remaining - total)
  return step
end

function holding.peek(hit, state, now, changes)
  return charge_beside(hit, state, now, 0, amount(hit.key, "", changes), false, "")
end

return holding
