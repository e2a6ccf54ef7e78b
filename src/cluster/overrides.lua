-- Overrides of operators, for all gateways. docs/decisions/080-shared-overrides.md says why.
--
-- KEYS: a hash: target = "at lasts text", in ms; lasts is -1 until it is ended. An override that was ended has a
-- text that says so. "_rev.<number>" is a field that is there until something changes.
-- ARGV: the number that the gateway knows, then five values for each change:
--   target at age lasts text
--   at is 0 for an override that the store has never had: it was made age ms ago.
-- Answer: "same" or "all", the number, the time, then target at lasts text for each override.
--NOW
local KEEP = 86400000 -- ms for which an override is known that is over: a gateway may have been away
local MOST = 4096 -- overrides
local FOREVER = 315360000 -- s

local key, time = KEYS[1], string.format('%.0f', now)
if #ARGV == 1 and redis.call('HEXISTS', key, '_rev.' .. ARGV[1]) == 1 then
  return {'same', ARGV[1], time}
end

local all, found, count, rev, changed = redis.call('HGETALL', key), {}, 0, 0, false
for i = 1, #all, 2 do
  local number = string.match(all[i], '^_rev%.(%d+)$')
  if number then
    rev = math.max(rev, tonumber(number))
  else
    local at, lasts, text = string.match(all[i + 1], '^(%d+) (-?%d+) (.*)$')
    if at then
      found[all[i]] = {at = tonumber(at), lasts = tonumber(lasts), text = text}
      count = count + 1
    end
  end
end

for i = 2, #ARGV - 4, 5 do
  local target, at, lasts = ARGV[i], tonumber(ARGV[i + 1]) or 0, tonumber(ARGV[i + 3]) or 0
  if at <= 0 then at = now - (tonumber(ARGV[i + 2]) or 0) end
  local old = found[target]
  -- The later one counts. A clock of the store that was ahead must not lock a target.
  if (old and (at >= old.at or old.at > now)) or (not old and count < MOST) then
    if not old then count = count + 1 end
    found[target], changed = {at = at, lasts = lasts, text = ARGV[i + 4]}, true
    redis.call('HSET', key, target, string.format('%.0f %.0f %s', at, lasts, ARGV[i + 4]))
  end
end

local ttl = KEEP / 1000
if changed then
  redis.call('HDEL', key, string.format('_rev.%.0f', rev))
  rev = math.max(now, rev + 1)
  redis.call('HSET', key, string.format('_rev.%.0f', rev), '1')
end
local answer = {'all', string.format('%.0f', rev), time}
for target, entry in pairs(found) do
  local left = entry.lasts < 0 and FOREVER * 1000 or entry.at + entry.lasts + KEEP - now
  if left < 0 then
    redis.call('HDEL', key, target)
  else
    ttl = math.max(ttl, math.ceil(left / 1000))
    answer[#answer + 1], answer[#answer + 2] = target, string.format('%.0f', entry.at)
    answer[#answer + 1], answer[#answer + 2] = string.format('%.0f', entry.lasts), entry.text
  end
end
if changed then redis.call('EXPIRE', key, ttl) end
return answer
