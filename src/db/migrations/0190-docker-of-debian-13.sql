-- Since Debian 13 the program `docker` is a package of its own, which the engine's only recommends.

update machine_configuration_versions set playbook_yaml = playbook,
  content_sha256 = 'sha256:' || encode(sha256(convert_to(playbook, 'UTF8')), 'hex')
from (select replace(playbook_yaml, '        name: [docker.io, ca-certificates]' || E'\n',
$part$        name: "{{ ['docker.io', 'ca-certificates'] + (has_own_cli | ternary(['docker-cli'], [])) }}"
$part$) as playbook from (select replace(playbook_yaml, '    login: "{{ ansible_user }}"' || E'\n',
$part$    login: "{{ ansible_user }}"
    has_own_cli: "{{ ansible_distribution == 'Debian' and ansible_distribution_major_version | int >= 13 }}"
$part$) as playbook_yaml from machine_configuration_versions
  where id = 'akoflow-scientific-worker-v7') as built_in) as changed
where id = 'akoflow-scientific-worker-v7';
