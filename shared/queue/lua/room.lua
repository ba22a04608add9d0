-- How full the queue is, in requests and reserved tokens, of all tenants and of one. Kept here while a command runs, and
-- written at its end. Needs the fixed key ten.

local everyone, rooms, is_changed = nil, {}, false

local function room_of(tenant)
  if not rooms[tenant] then
    local r, t = 'r:' .. tenant, 't:' .. tenant
    local have = redis.call('HMGET', K_ten, 'r', 't', r, t)
    everyone = everyone or {n = tonumber(have[1]) or 0, tokens = tonumber(have[2]) or 0}
    rooms[tenant] = {n = tonumber(have[3]) or 0, tokens = tonumber(have[4]) or 0, r = r, t = t}
  end
  return rooms[tenant]
end

-- Takes room for n requests of `tokens` in all. Replies nil and how many are live now; where that breaks a cap (0 is
-- none), its name and how many there were.
local function take_room(tenant, n, tokens, caps)
  local own = room_of(tenant)
  local all_n, all_tokens, own_n, own_tokens =
    everyone.n + n, everyone.tokens + tokens, own.n + n, own.tokens + tokens
  if caps[1] > 0 and all_n > caps[1] then return 'requests', everyone.n end
  if caps[2] > 0 and all_tokens > caps[2] then return 'tokens', everyone.n end
  if caps[3] > 0 and own_n > caps[3] then return 'tenant_requests', everyone.n end
  if caps[4] > 0 and own_tokens > caps[4] then return 'tenant_tokens', everyone.n end
  everyone.n, everyone.tokens, own.n, own.tokens, is_changed = all_n, all_tokens, own_n, own_tokens, true
  return nil, all_n
end

-- Gives it back; a tenant with nothing live is forgotten.
local function give_room(tenant, n, tokens)
  local own = room_of(tenant)
  everyone.n, everyone.tokens, is_changed = everyone.n - n, everyone.tokens - tokens, true
  if own.n <= n then
    own.n, own.tokens = 0, 0
  else
    own.n, own.tokens = own.n - n, own.tokens - tokens
  end
end

at_end[#at_end + 1] = function()
  if not is_changed then return end
  local set, gone = {'r', int(everyone.n), 't', int(everyone.tokens)}, nil
  for _, own in pairs(rooms) do
    if own.n > 0 then
      add(add(set, own.r, int(own.n)), own.t, int(own.tokens))
    else
      gone = add(gone, own.r, own.t)
    end
  end
  write('HSET', K_ten, set)
  if gone then write('HDEL', K_ten, gone) end
end
