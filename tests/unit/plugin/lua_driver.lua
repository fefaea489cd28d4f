-- Reads a Lua table of scripts from standard input and writes what the plugin's check() says of each, a line each.
local plugin = dofile(arg[1])
for _, script in ipairs((loadstring or load)(io.read("*a"))()) do
  local kind, text = plugin.check(script)
  io.write(kind, text and " " .. text or "", "\n")
end
