-- The gateways that are there. docs/decisions/075-leases.md says why.
--
-- KEYS: the gateways (a hash: id = "seen version name program waiting unfinished"; a later version may
-- append values, and the first one had two) and the limits of which somebody misses something (a sorted set by
-- time).
-- ARGV: the gateway, its values from the version on, "1" if it leaves, then the limits of which it misses
-- something.
-- Answer: 1 if the store knew the gateway, the gateways, the limits that are missed, for each gateway its age
-- in ms with its values, and the time in ms.
--NOW
local SILENT = 5000 -- ms after which a gateway is gone
local PAUSE = 1000 -- ms without any report: the store was away, and nobody was silent
local MISSED = 1500 -- ms for which a limit counts as missed

local me, leaves = ARGV[1], ARGV[3] == '1'
local known, last, ids, said = redis.call('HEXISTS', KEYS[1], me), nil, {}, {}
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  if all[i] == '_last' then last = tonumber(all[i + 1]) end
end
local paused = not last or now - last > PAUSE
for i = 1, #all, 2 do
  local id = all[i]
  if id ~= '_last' and id ~= me then
    local seen, rest = string.match(all[i + 1], '^(%d+)(.*)$')
    local age = now - (tonumber(seen) or 0)
    if not paused and age > SILENT then
      redis.call('HDEL', KEYS[1], id)
    else
      if paused then redis.call('HSET', KEYS[1], id, string.format('%.0f', now) .. (rest or '')) end
      ids[#ids + 1], said[#said + 1] = id, string.format('%.0f', math.max(0, age)) .. (rest or '')
    end
  end
end
if leaves then
  redis.call('HDEL', KEYS[1], me)
else
  ids[#ids + 1], said[#said + 1] = me, '0 ' .. ARGV[2]
  redis.call('HSET', KEYS[1], me, string.format('%.0f', now) .. ' ' .. ARGV[2])
end
redis.call('HSET', KEYS[1], '_last', string.format('%.0f', now))
redis.call('EXPIRE', KEYS[1], 3600)
for i = 4, #ARGV do redis.call('ZADD', KEYS[2], now, ARGV[i]) end
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now - MISSED)
redis.call('EXPIRE', KEYS[2], 60)
return {known, ids, redis.call('ZRANGE', KEYS[2], 0, 255), said, now}
