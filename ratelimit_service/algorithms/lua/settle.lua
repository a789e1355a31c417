-- The rule of passing: the same as settle.py, see there. Expects the table `algorithms`.
-- A hit is { key, spec, addend, mode, count_denied, refund, lease, joined, receipt }, its spec
-- { algorithm, limit, window and so on } as in Python; `read` gives a key's state. Returns a step for
-- each hit and, by key, the steps to write. What is held beside counters is for the table `holding`. No redis.call here.

local ENFORCED, SHADOW, QUOTA = 0, 1, 2

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

local function charge(hit, changes, read, now)
  local state = state_of(hit.key, changes, read)
  local algorithm, step = algorithms[hit.spec.algorithm], nil
  if hit.spec.holds or hit.hold then
    step = holding.charge(hit, state, now, changes)
  else
    step = algorithm.charge(state, now, hit.addend, hit.spec, hit.count_denied, hit.lease)
  end
  if step.counted > 0 and (not hit.hold or hit.hold.settles) then
    changes[hit.key] = step
  end
  return step
end

local function withhold(hits, first, last, steps, changes, read, now)
  for place = first, last do
    local hit = hits[place]
    if not hit.refund then
      steps[place].counted = hit.count_denied and charge(hit, changes, read, now).counted or 0
    end
  end
  for place = first, last do
    local hit, step = hits[place], steps[place]
    if step.passed and not hit.refund then
      local state = state_of(hit.key, changes, read)
      local peek
      if hit.spec.holds then
        peek = holding.peek(hit, state, now, changes)
      else
        peek = algorithms[hit.spec.algorithm].charge(state, now, 0, hit.spec, false, "")
      end
      step.remaining, step.reset = peek.remaining, peek.reset
    end
  end
end

local function settle(hits, read, now)
  local committed, steps = {}, {}
  for place, hit in ipairs(hits) do
    if hit.refund then
      local state = state_of(hit.key, committed, read)
      local step
      if hit.spec.holds or hit.hold then
        step = holding.refund(hit, state, now, committed)
      else
        step = algorithms[hit.spec.algorithm].refund(state, now, hit.addend, hit.spec, hit.lease, hit.receipt)
      end
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
    local last, mode = first, hits[first].mode
    while last < #hits and hits[last + 1].joined do
      last = last + 1
    end
    if not hits[first].refund then
      local before = mode == SHADOW and last > first and copy(scratch)
      local over = false
      for place = first, last do
        steps[place] = charge(hits[place], scratch, read, now)
        over = over or not steps[place].passed
      end
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
