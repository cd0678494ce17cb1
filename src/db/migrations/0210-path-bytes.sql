-- Names of files are bytes: relative_path shows what is no UTF-8 escaped, and here are its bytes in
-- base64. Null: the path is its text.

alter table data_object_instances add column if not exists path_bytes text;
