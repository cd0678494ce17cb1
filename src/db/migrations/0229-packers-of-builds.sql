-- A build run records the program that packed its file: another version may give other bytes.

alter table build_runs add column if not exists packer text;
