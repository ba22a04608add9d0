-- The terminal step, shared by finish, end and end_missing: outcome, body, notices, counters, parent.
-- Goes with numbers, room, ready and dependents (the last two but for end_missing); needs the fixed keys in, live,
-- ready:0..2, ready:R, ready:S, later, lease, when, recent, resv, flags.

local STAT = {F = 'finished', C = 'cancelled', E = 'error'}

-- What goes to each result stream: one entry for all the ends of a command, since their reader takes them together anyway.
local posted = {}

local function post(key, rid, outcome, body)
  posted[key] = add(add(posted[key], 'i', rid), 'r', outcome)
  if body then add(posted[key], 'b', body) end
end

-- One notice to each api that is declared; returns those that are not.
local function notice(rid, apis, outs, outcome, body, inline_max)
  local missed = {}
  for _, api in ipairs(apis) do
    local key = outs[api]
    if not key then
      missed[#missed + 1] = api
    else
      post(key, rid, outcome, body and #outcome + #body <= inline_max and body)
    end
  end
  return missed
end

local ended

local function remember(rid, now) ended = add(ended, now, rid) end

-- A child of `parent` ended; at the last one the parent gets its own outcome and notice.
local function count_child(parent, grp_key, res_key, now, ttl_ms, outs)
  local done = redis.call('HINCRBY', grp_key, 'terminal', 1)
  local g = redis.call('HMGET', grp_key, 'n', 'digest', 'tenant', 'delivery', 'apis', 't0', 'cancelled', 'at')
  local n = tonumber(g[1])
  if not n or done < n then return {} end
  local state = g[7] == '1' and 'C' or 'F'
  local outcome = cmsgpack.pack({1, state, state == 'C' and 'cancelled' or '', '', '', '', 0, 0, tonumber(g[6]), 0, now,
    g[2], g[3], '', g[4], '', {{tonumber(g[8]), 'submitted', ''}, {wall, 'ended', state}}, n})
  redis.call('SET', res_key, outcome, 'PX', ttl_ms)
  redis.call('PEXPIRE', grp_key, ttl_ms)
  redis.call('ZREM', K_resv, parent)
  remember(parent, now)
  return notice(parent, split(g[5]), outs, outcome, nil, 0)
end

local left, entries = {}, nil

local function leave(set, rid) left[set] = add(left[set], rid) end

at_end[#at_end + 1] = function()
  for set, ids in pairs(left) do write('ZREM', set, ids) end
  if entries then write('XDEL', K_in, entries) end
  -- A stream that somebody damaged is its reader's trouble, who finds the outcome by its reconcile.
  for key, entry in pairs(posted) do
    redis.pcall('XADD', key, 'NOMKSTREAM', 'MAXLEN', '~', OUT_MAX, '*', unpack(entry))
  end
  if not ended then return end
  write('ZADD', K_recent, ended)
  -- The oldest are cut off now and then, not each time.
  if ended[1] % 64 == 0 then write('ZREMRANGEBYRANK', K_recent, {0, -RECENT_MAX - 1}) end
end

-- Out of whichever set its state has it in.
local function leave_sets(rid, rec)
  if rec[R_ST] == 'R' then
    leave(K_lease, rid)
  elseif rec[R_ST] == 'L' then
    redis.call('ZREM', K_later, rid)
  elseif rec[R_ST] == 'Q' then
    for _, set in ipairs({K_ready_0, K_ready_1, K_ready_2, K_ready_R, K_ready_S}) do
      if redis.call('ZREM', set, rid) == 1 then break end
    end
  end
end

-- keys = {res, body, part, grp, res_parent}. Returns the apis that were not declared, and the outcome.
local function terminate(rid, rec, now, state, code, message, report, body, keys, outs, ttl_ms, body_ttl_ms, inline_max)
  add_event(rec, 'ended', state)
  local started = rec[R_ST0] > 0 and rec[R_ST0] or (rec[R_ST] == 'R' and rec[R_CT] or 0)
  local outcome = cmsgpack.pack({1, state, code, message, rec[R_W], rec[R_TOK], rec[R_AT], rec[R_CR], rec[R_T0],
    started, now, rec[R_DG], rec[R_TN], rec[R_PA], rec[R_FL], report, rec[R_EV], 0, rec[R_GR]})
  -- First what must not be missing: a command that fails ends the script, and what ran before it stays.
  redis.call('SET', keys[1], outcome, 'PX', ttl_ms)
  if body then redis.call('SET', keys[2], body, 'PX', body_ttl_ms) end
  redis.call('PEXPIRE', keys[3], body_ttl_ms)
  local needed_ms = release_dependents(rid, state == 'F', now)
  if needed_ms > tonumber(body_ttl_ms) then redis.call('PEXPIRE', keys[2], int(needed_ms)) end
  if needed_ms > tonumber(ttl_ms) then redis.call('PEXPIRE', keys[1], int(needed_ms)) end
  if #rec[R_DEP] > 0 then leave_predecessors(rid, rec) end
  leave_sets(rid, rec)
  leave(K_when, rid)
  records[rid] = false
  entries = add(entries, rec[R_EI])
  give_room(rec[R_TN], 1, rec[R_TK])
  count(STAT[state])
  if code ~= '' then count('code:' .. code) end
  if rec[R_PA] ~= '' then
    return count_child(rec[R_PA], keys[4], keys[5], now, ttl_ms, outs), outcome
  end
  remember(rid, now)
  return notice(rid, rec[R_APIS], outs, outcome, body, inline_max), outcome
end
