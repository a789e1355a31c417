-- The rule of passing: the same as settle.py, see there. Expects the table `algorithms`.
-- A hit is { key, spec, addend, mode, count_denied, refund, lease, joined, receipt }, its spec
-- { algorithm, limit, window and so on } as in Python; `read` gives a key's state. Returns a step for
-- each hit and, by key, the steps to write. What is held beside counters is for the table `holding`. No redis.call here.

local ENFORCED, SHADOW, QUOTA, IN_TURN, GRANT, ADVANCE = 0, 1, 2, 3, 4, 5
local LEAST_ADVANCE = 4

local function state_of(key, changes, read)
  local change = changes[key]
  if change then
    return change.state
  end
  return read(key)
end

local function copy(changes)
  local copied = {}
  for key, step in pairs(changes) do
    copied[key] = step
  end
  return copied
end

-- How many hits of an advance are given: those asked for, as far as others find as many.
local function given(hit, state, now)
  local peek = algorithms[hit.spec.algorithm].charge(state, now, 0, hit.spec, false, "")
  local share = math.floor(peek.remaining / (2 * struct.unpack(">I2", hit.lease)))
  local given = math.min(hit.addend, share)
  return given >= LEAST_ADVANCE and given or 0
end

local function charge(hit, changes, read, now)
  local state = state_of(hit.key, changes, read)
  local algorithm, step = algorithms[hit.spec.algorithm], nil
  if hit.spec.holds or hit.hold then
    step = holding.charge(hit, state, now, changes)
  else
    local addend = hit.mode == ADVANCE and given(hit, state, now) or hit.addend
    step = algorithm.charge(state, now, addend, hit.spec, hit.count_denied, hit.lease)
  end
  if step.counted > 0 and (not hit.hold or hit.hold.settles) then
    changes[hit.key] = step
  end
  return step
end

local function peek(hit, changes, read, now)
  local state = state_of(hit.key, changes, read)
  if hit.spec.holds then
    return holding.peek(hit, state, now, changes)
  end
  return algorithms[hit.spec.algorithm].charge(state, now, 0, hit.spec, false, "")
end

local function give_back(hit, changes, read, now)
  local state = state_of(hit.key, changes, read)
  if hit.spec.holds or hit.hold then
    return holding.refund(hit, state, now, changes)
  end
  return algorithms[hit.spec.algorithm].refund(state, now, hit.addend, hit.spec, hit.lease, hit.receipt)
end

-- Charges the first of these counters that has room for all hits, or the one that knows the id. The others are looked at.
local function charge_first(hits, first, last, steps, changes, read, now)
  local settles, payer, known, one_knows = false, nil, {}, nil
  for place = first, last do
    local hold = hits[place].hold -- where some of these limits give places, only the others can hold
    settles = settles or (hold and hold.settles)
    known[place] = hold and holding.knows(hits[place], changes)
    one_knows = one_knows or (known[place] and place)
  end
  for place = first, last do
    hits[place].addend = hits[first].addend
    if not payer and (known[place] or not one_knows) then
      steps[place] = charge(hits[place], changes, read, now)
      -- To settle by 0 hits counts nothing, but the id is known from then on.
      local settled = settles and hits[place].hold and holding.knows(hits[place], changes)
      payer = (steps[place].passed or steps[place].counted > 0 or settled) and place
    end
  end
  local later = steps[one_knows or first].retry + 1 -- who is not asked has no room sooner
  for place = first, last do
    local hit = hits[place]
    if place ~= payer and (payer or not steps[place]) then
      steps[place] = give_back({ key = hit.key, spec = hit.spec, addend = 0, lease = "" }, changes, read, now)
      steps[place].passed, steps[place].retry = payer and not settles, later
    end
  end
  return not payer
end

-- Charges the hits of one descriptor; returns whether one is over.
local function charge_together(hits, first, last, steps, changes, read, now)
  local taken, over = false, false
  for place = first, last do
    local hit = hits[place]
    local grant = hit.mode == GRANT
    local step = (taken and peek or charge)(hit, changes, read, now)
    step.granted = taken
    if not step.passed and (taken or grant) then
      step.passed = true
    else
      over = over or not step.passed
      taken = grant
    end
    taken = taken and grant
    steps[place] = step
  end
  return over
end

local function withhold(hits, first, last, steps, changes, read, now)
  for place = first, last do
    local hit = hits[place]
    if not hit.refund then
      local counts = hit.count_denied and not steps[place].granted
      steps[place].counted = counts and charge(hit, changes, read, now).counted or 0
    end
  end
  for place = first, last do
    local hit, step = hits[place], steps[place]
    if step.passed and not hit.refund then
      local left = peek(hit, changes, read, now)
      step.remaining, step.reset = left.remaining, left.reset
    end
  end
end

local function settle(hits, read, now)
  local committed, steps = {}, {}
  for place, hit in ipairs(hits) do
    if hit.refund then
      local step = give_back(hit, committed, read, now)
      steps[place] = step
      if step.counted > 0 and not hit.hold then
        committed[hit.key] = step
      end
    end
  end

  local scratch = copy(committed)
  local denied, quotas, quotas_over = false, 0, 0
  local first = 1
  while first <= #hits do
    local last = first
    while last < #hits and (hits[last + 1].joined or hits[last].mode == GRANT) do
      last = last + 1
    end
    local mode = hits[last].mode
    if not hits[first].refund then
      local before = mode == SHADOW and last > first and copy(scratch)
      local charging = hits[first].mode == IN_TURN and charge_first or charge_together
      local over = charging(hits, first, last, steps, scratch, read, now)
      if over and before then
        withhold(hits, first, last, steps, before, read, now)
        scratch = before
      end
      if mode == ENFORCED then
        denied = denied or over
      elseif mode == QUOTA then
        quotas, quotas_over = quotas + 1, quotas_over + (over and 1 or 0)
      end
    end
    first = last + 1
  end
  if denied or (quotas > 0 and quotas == quotas_over) then
    withhold(hits, 1, #hits, steps, committed, read, now)
    scratch = committed
  end
  return steps, scratch
end
