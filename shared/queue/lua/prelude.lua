-- Shared by every script: the layout of records and outcomes, the queue clock.
-- The loader puts in front of it one local per fixed key (K_in, K_live, K_ready_0, ...) and NK, their number.

-- Record: a packed array, no nil in it. Its order is that of shared/request.py Record.
local R_V, R_ST, R_EI, R_LN, R_TN, R_TK, R_T0, R_DL, R_QT, R_W, R_TOK, R_ST0 = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12
local R_GR, R_CR, R_AT, R_APIS, R_FL, R_DG, R_PA, R_DEP, R_WH, R_EV, R_TP, R_CT, R_TAG =
  13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25
local EVENTS_MAX, OUT_MAX, RECENT_MAX = 16, 20000, 10000

local function int(x) return string.format('%.0f', x) end
local function real(x) return string.format('%.17g', x) end

-- The server's own clock, which events tell: people read them. Everything that is compared goes by the queue clock.
local wall

-- The queue clock: never backwards, and a jump of the server's clock (or a pause) is not passed on.
-- Only tick moves it; until then scripts see at most one second after the last tick's step.
local function queue_now()
  local raw = tonumber(ARGV[1])
  if raw == 0 then
    local t = redis.call('TIME')
    raw = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
  end
  wall = raw
  local f = redis.call('HMGET', K_flags, 'clk', 'off', 'paused')
  local clk, off = tonumber(f[1]) or 0, tonumber(f[2]) or 0
  local now = raw - off
  if clk > 0 and now - clk > 5000 then now = clk + 1000 end
  if clk > now then now = clk end
  return now, raw, clk, off, f[3] == '1'
end

local function load_record(rid)
  local raw = redis.call('HGET', K_live, rid)
  return raw and cmsgpack.unpack(raw) or nil
end

local function save_record(rid, rec)
  redis.call('HSET', K_live, rid, cmsgpack.pack(rec))
end

local function add_event(rec, kind, detail)
  local ev = rec[R_EV]
  if #ev >= EVENTS_MAX then table.remove(ev, 2) end
  ev[#ev + 1] = {wall, kind, detail or ''}
end

local function split(text)
  local parts = {}
  for part in string.gmatch(text, '[^,]+') do parts[#parts + 1] = part end
  return parts
end
