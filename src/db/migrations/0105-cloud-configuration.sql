-- What of a machine's configuration has happened, and the built-in one made to be run: it changes nothing where all is there already.

-- When playbooks first began to run on the machine. From then on a failure leaves it, so that it can be configured again.
alter table cloud_instances add column if not exists configuring_at timestamptz;
-- The versions whose playbooks have ended well in this operation: a repeated step goes on behind them.
alter table cloud_operations add column if not exists configured jsonb not null default '[]';

update machine_configuration_versions set playbook_yaml = playbook,
  content_sha256 = 'sha256:' || encode(sha256(convert_to(playbook, 'UTF8')), 'hex'),
  compatibility = '{"providers": ["gcp", "aws", "azure"], "operatingSystems": ["ubuntu-22.04", "ubuntu-24.04", "debian-12", "debian-13"], "architectures": ["amd64"]}',
  validation_checks = '[{"name": "docker", "command": "docker version", "capability": "container"},
    {"name": "workspace", "command": "test -w \"${akoflow_workspace_path:-/akoflow/workspace}\""},
    {"name": "wrapper", "command": "test \"$(akoflow-run echo ready)\" = ready"}]'
from (values (btrim($playbook$
- name: Scientific worker
  hosts: all
  become: true
  gather_facts: true
  vars:
    akoflow_workspace_path: /akoflow/workspace
    login: "{{ ansible_user }}"
  tasks:
    - name: Whether Docker is there
      ansible.builtin.command: docker --version
      register: docker
      changed_when: false
      failed_when: false
    - name: Docker is installed
      ansible.builtin.apt:
        name: [docker.io, ca-certificates]
        update_cache: true
        cache_valid_time: 3600
        install_recommends: false
        lock_timeout: 300
      when: docker.rc != 0
    - name: Docker runs
      ansible.builtin.service:
        name: docker
        state: started
        enabled: true
    - name: The login may use Docker
      ansible.builtin.user:
        name: "{{ login }}"
        groups: [docker]
        append: true
    - name: The workspace is there and belongs to the login
      ansible.builtin.file:
        path: "{{ akoflow_workspace_path }}"
        state: directory
        owner: "{{ login }}"
        mode: "0750"
    - name: The wrapper is there
      ansible.builtin.copy:
        dest: /usr/local/bin/akoflow-run
        mode: "0755"
        content: |
          #!/bin/sh
          # Runs a program in the workspace of this machine.
          workspace={{ akoflow_workspace_path | quote }}
          cd -- "${AKOFLOW_WORKSPACE:-$workspace}" || exit 125
          exec "$@"
$playbook$, E'\n'))) as built_in (playbook)
where id = 'akoflow-scientific-worker-v7';
