-- The rule of passing: the same as settle.py, see there. Expects the table `algorithms`.
-- A hit is { key, limit, window, addend, algorithm, mode, count_denied, refund }; `read` gives
-- a key's state. Returns a step for each hit and, by key, the steps to write. No redis.call here.

local ENFORCED, QUOTA = 0, 2

local function state_of(key, changes, read)
  local change = changes[key]
  if change then
    return change.state
  end
  return read(key)
end

local function charge(hit, changes, read, now)
  local state = state_of(hit.key, changes, read)
  local step = algorithms[hit.algorithm].charge(state, now, hit.addend, hit.limit, hit.window, hit.count_denied)
  if step.counted > 0 then
    changes[hit.key] = step
  end
  return step
end

local function settle(hits, read, now)
  local committed, steps = {}, {}
  for index, hit in ipairs(hits) do
    if hit.refund then
      local state = state_of(hit.key, committed, read)
      local step = algorithms[hit.algorithm].refund(state, now, hit.addend, hit.limit, hit.window)
      steps[index] = step
      if step.counted > 0 then
        committed[hit.key] = step
      end
    end
  end

  local scratch = {}
  for key, step in pairs(committed) do
    scratch[key] = step
  end
  local denied, quotas, quotas_over = false, 0, 0
  for index, hit in ipairs(hits) do
    if not hit.refund then
      local step = charge(hit, scratch, read, now)
      steps[index] = step
      if hit.mode == ENFORCED then
        denied = denied or not step.passed
      elseif hit.mode == QUOTA then
        quotas = quotas + 1
        quotas_over = quotas_over + (step.passed and 0 or 1)
      end
    end
  end
  if not denied and not (quotas > 0 and quotas == quotas_over) then
    return steps, scratch
  end

  for index, hit in ipairs(hits) do
    if not hit.refund then
      steps[index].counted = hit.count_denied and charge(hit, committed, read, now).counted or 0
    end
  end
  for index, hit in ipairs(hits) do
    if steps[index].passed then
      local state = state_of(hit.key, committed, read)
      steps[index].left = algorithms[hit.algorithm].charge(state, now, 0, hit.limit, hit.window, false).left
    end
  end
  return steps, committed
end
