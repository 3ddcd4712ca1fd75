-- Put before a script: it works in this database, whatever the connection is in, or fails.
redis.call('SELECT', DATABASE)
