-- Loads of the gateways: what each has at replicas and what waits there.
-- docs/decisions/088-fairness-over-gateways.md says why.
--
-- KEYS: the loads (a hash: gateway = "at text").
-- ARGV: the gateway, its load ("" = it leaves).
-- Answer: the id and the load of each other gateway that has told it lately.
--NOW
local VALID = 2000 -- ms
local MOST = 256 -- gateways
local BYTES = 1048576 -- of the loads in one answer

local me, text = ARGV[1], ARGV[2]
if text == '' then
  redis.call('HDEL', KEYS[1], me)
else
  redis.call('HSET', KEYS[1], me, string.format('%.0f', now) .. ' ' .. text)
  redis.call('EXPIRE', KEYS[1], 3600)
end

local answer, bytes, count = {}, 0, 0
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  local at, said = string.match(all[i + 1], '^(%d+) (.*)$')
  if not at or math.abs(now - tonumber(at)) > VALID then
    redis.call('HDEL', KEYS[1], all[i])
  elseif all[i] ~= me and count < MOST and bytes + #said <= BYTES then
    count, bytes = count + 1, bytes + #said
    answer[#answer + 1], answer[#answer + 2] = all[i], said
  end
end
return answer
