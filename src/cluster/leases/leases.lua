-- Leases of the limits of one tenant or key. docs/decisions/075-leases.md says why.
--
-- KEYS: a hash for each limit, with a field for each gateway and account:
--   "<gateway>.<account>" = "seq used held ceiling missed demand seen"; later versions append values.
--   "_lost" is what was used in a day or month by gateways that are gone or were never heard of here.
-- ARGV: the gateway, the gateways that are there (with commas), then twelve values for each key:
--   account period limit seq acked told used held ceiling missed demand others
--   acked is the last report that was answered, and told is what it said of the use.
-- Answer for each key: "ceiling keep share others free gateways", or "late".
--NOW
local GRACE = 2000 -- ms for all gateways to connect and report after the store has lost its data
local MINUTE = 61000 -- ms after which nothing of a minute's use counts
local SILENT = 5000 -- ms after which a gateway that reports nothing may be gone
local FRESH = 1500 -- ms for which a gateway misses what it has missed
local KEEP = {concurrent = 3600, per_minute = 3600, per_day = 2 * 86400, per_month = 33 * 86400}
local FIELDS = 12

local me = ARGV[1]
local live, gateways = {[me] = true}, 0
for id in string.gmatch(ARGV[2], '[^,]+') do live[id] = true end
for _ in pairs(live) do gateways = gateways + 1 end

local function text(...)
  local words = {}
  for _, number in ipairs({...}) do words[#words + 1] = string.format('%.0f', number) end
  return table.concat(words, ' ')
end

local function read(value)
  local n = {}
  for word in string.gmatch(value, '%S+') do n[#n + 1] = tonumber(word) or 0 end
  return {seq = n[1] or 0, used = n[2] or 0, held = n[3] or 0, ceiling = n[4] or 0,
    missed = n[5] or 0, demand = n[6] or 0, seen = n[7] or 0}
end

-- Sums over the other gateways. Those that are gone, and accounts of this gateway that it has closed, keep
-- what they have used, and no lease. Of a day or month it goes into one sum: the hash must not grow with
-- each start of a gateway.
local function sum_others(key, field, period, all)
  local sum = {used = 0, held = 0, leased = 0, missed = 0, demand = 0, gone = 0}
  for i = 1, #all, 2 do
    local name = all[i]
    if name ~= field and string.sub(name, 1, 1) ~= '_' then
      local entry, id = read(all[i + 1]), string.match(name, '^[^.]+')
      -- The reporter's list may lack a gateway that has just joined.
      if id ~= me and (live[id] or now - entry.seen < SILENT) then
        sum.used, sum.held = sum.used + entry.used, sum.held + entry.held
        sum.leased, sum.demand = sum.leased + math.max(entry.ceiling, entry.held), sum.demand + entry.demand
        if now - entry.seen < FRESH then sum.missed = sum.missed + entry.missed end
      elseif period == 'per_minute' and now - entry.seen < MINUTE then
        sum.used, sum.held, sum.leased = sum.used + entry.held, sum.held + entry.held, sum.leased + entry.held
        if id == me then
          redis.call('HSET', key, 'x' .. name, all[i + 1])
          redis.call('HDEL', key, name)
        end
      else
        if period == 'per_day' or period == 'per_month' then sum.gone = sum.gone + entry.used end
        redis.call('HDEL', key, name)
      end
    end
  end
  return sum
end

local answers = {}
for k, key in ipairs(KEYS) do
  local at = 2 + (k - 1) * FIELDS
  local account, period = ARGV[at + 1], ARGV[at + 2]
  local n = {}
  for i = 3, FIELDS do n[i] = tonumber(ARGV[at + i]) or 0 end
  local limit, seq, acked, told, used, held = n[3], n[4], n[5], n[6], n[7], n[8]
  local ceiling, missed, demand, others = math.max(n[9], held), n[10], n[11], n[12]
  local field = me .. '.' .. account
  local all = redis.call('HGETALL', key)
  local mine, born, lost = nil, 0, 0
  for i = 1, #all, 2 do
    if all[i] == field then mine = read(all[i + 1])
    elseif all[i] == '_born' then born = tonumber(all[i + 1]) or 0
    elseif all[i] == '_lost' then lost = tonumber(all[i + 1]) or 0 end
  end
  local stored = mine and mine.seq or 0
  if seq <= stored then
    answers[k] = 'late'
  else
    local sum = sum_others(key, field, period, all)
    local is_calendar = period == 'per_day' or period == 'per_month'
    lost = lost + sum.gone
    if stored < acked then
      -- The store has lost data, or has taken this gateway for gone: what it had told counted as lost.
      born = now
      lost = math.max(0, lost - math.max(0, told - (mine and mine.used or 0)))
    end
    if is_calendar then lost = math.max(lost, others - sum.used) else lost = 0 end
    local room = math.max(0, limit - lost - sum.leased - ceiling)
    if now - born < GRACE then room = 0 end
    local share = -1
    if sum.missed > 0 and not is_calendar and sum.demand + demand > 0 then
      share = math.floor(limit * demand / (sum.demand + demand))
    end
    -- What is missed goes first: to all gateways, but last to those above their share.
    local need = math.max(0, missed - (ceiling - held))
    local most = room
    if share >= 0 and held > share then most = math.max(0, room - sum.missed) end
    local grant = math.min(need, most)
    -- A gateway alone leaves a part for one that joins.
    local part = gateways == 1 and 0.75 or 1 / (2 * gateways)
    local keep = math.floor(math.max(0, limit - lost - sum.held - held) * part + 0.5)
    if sum.missed > room - grant then keep = 0 end
    local spare = math.max(0, room - grant - sum.missed)
    grant = grant + math.min(spare, math.max(0, held + keep - ceiling - grant))
    local left = math.max(0, need - grant)
    ceiling = ceiling + grant
    redis.call('HSET', key, field, text(seq, used, held, ceiling, left, demand, now),
      '_born', text(born), '_lost', text(lost))
    redis.call('EXPIRE', key, KEEP[period] or 3600)
    answers[k] = text(ceiling, keep, share, sum.used + lost, math.max(0, room - grant), gateways)
  end
end
return answers
