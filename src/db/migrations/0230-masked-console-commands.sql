-- The texts of a command as answers show them, while others run: values of the vault are masked.

alter table console_commands add column if not exists masked jsonb;
