-- What a machine becomes before it is used: named playbooks in versions that never change. One of them comes with the service.

create table if not exists machine_configurations (
  id identifier constraint machine_configurations_pkey primary key,
  name text not null constraint machine_configurations_name unique,
  description text not null default '',
  ownership text not null default 'user' constraint machine_configurations_ownership check (ownership in ('system', 'user')),
  enabled boolean not null default true,
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now()
);

create table if not exists machine_configuration_versions (
  id identifier constraint machine_configuration_versions_pkey primary key,
  machine_configuration_id identifier not null
    constraint machine_configuration_versions_configuration references machine_configurations on delete cascade,
  version bigint not null constraint machine_configuration_versions_positive check (version > 0),
  status text not null constraint machine_configuration_versions_status check (status in ('draft', 'published', 'deprecated')),
  playbook_yaml text not null,
  content_sha256 text not null,
  compatibility jsonb not null default '{}',
  variables_schema jsonb,
  validation_checks jsonb,
  created_at timestamptz not null default now(),
  constraint machine_configuration_versions_number unique (machine_configuration_id, version)
);

insert into machine_configurations (id, name, description, ownership)
values ('akoflow-scientific-worker', 'Scientific worker', 'Docker and a workspace that the login may write', 'system')
on conflict do nothing;

insert into machine_configuration_versions
  (id, machine_configuration_id, version, status, playbook_yaml, content_sha256, compatibility, variables_schema, validation_checks)
select 'akoflow-scientific-worker-v7', 'akoflow-scientific-worker', 7, 'published', playbook,
  'sha256:' || encode(sha256(convert_to(playbook, 'UTF8')), 'hex'),
  '{"providers": ["gcp", "aws", "azure"], "operatingSystems": ["ubuntu-22.04", "ubuntu-24.04"], "architectures": ["amd64"]}',
  '{"type": "object", "properties": {"akoflow_workspace_path": {"type": "string", "default": "/akoflow/workspace"}}, "additionalProperties": false}',
  '[{"name": "docker", "command": "docker version", "capability": "container"},
    {"name": "workspace", "command": "test -w \"${akoflow_workspace_path:-/akoflow/workspace}\""}]'
from (values (btrim($playbook$
- name: Scientific worker
  hosts: all
  become: true
  gather_facts: true
  vars:
    akoflow_workspace_path: /akoflow/workspace
  tasks:
    - name: Docker is installed
      ansible.builtin.apt:
        name: [docker.io, ca-certificates]
        update_cache: true
        cache_valid_time: 3600
        install_recommends: false
    - name: Docker runs
      ansible.builtin.service:
        name: docker
        state: started
        enabled: true
    - name: The login may use Docker
      ansible.builtin.user:
        name: "{{ ansible_user_id if ansible_user_id != 'root' else (ansible_env.SUDO_USER | default('root')) }}"
        groups: [docker]
        append: true
    - name: The workspace is there and belongs to the login
      ansible.builtin.file:
        path: "{{ akoflow_workspace_path }}"
        state: directory
        owner: "{{ ansible_env.SUDO_USER | default('root') }}"
        mode: "0750"
$playbook$, E'\n'))) as built_in (playbook)
on conflict do nothing;
