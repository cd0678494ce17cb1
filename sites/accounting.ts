import { chownSync, existsSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { folderAt, until } from './ground.ts'
import type { Host } from './hosts.ts'

/**
 * Starts slurmdbd on a host, with its own MariaDB, which is created at the first start. Ready when
 * slurmdbd listens.
 */
export const startAccounting = async (host: Host, folder: string, address: string): Promise<void> => {
  await startDatabase(host, folder)
  const conf = join(folder, 'etc', 'slurmdbd.conf')
  writeFileSync(
    conf,
    [
      'AuthType=auth/munge',
      `AuthInfo=socket=${folder}/munge/socket`,
      'AuthAltTypes=auth/jwt',
      `AuthAltParameters=jwt_key=${folder}/etc/jwt.key`,
      `DbdHost=${host.name}`,
      `DbdAddr=${address}`,
      'SlurmUser=root',
      `LogFile=${folder}/log/slurmdbd.log`,
      'PidFile=/run/slurmdbd.pid',
      'StorageType=accounting_storage/mysql',
      'StorageHost=localhost',
      'StorageUser=slurm',
      'StoragePass=slurm',
      'StorageLoc=slurm_acct',
      '',
    ].join('\n'),
    { mode: 0o600 },
  )
  await host.run(`MYSQL_UNIX_PORT=${folder}/mariadb/socket slurmdbd`)
  await until(
    'slurmdbd listens',
    async () =>
      (await host.run(`bash -c 'exec 3<>/dev/tcp/${address}/6819'`, 'root', { mayFail: true })).code === 0,
    () => readFileSync(join(folder, 'log', 'slurmdbd.log'), 'utf8').slice(-2000),
  )
}

const startDatabase = async (host: Host, folder: string): Promise<void> => {
  const place = folderAt(join(folder, 'mariadb'))
  const isNew = !existsSync(join(place, 'data'))
  const [, , uid, gid] = readFileSync('/etc/passwd', 'utf8')
    .split('\n')
    .find((line) => line.startsWith('mysql:'))!
    .split(':')
  chownSync(place, Number(uid), Number(gid))
  if (isNew)
    await host.run(
      `mariadb-install-db --no-defaults --user=mysql --datadir=${place}/data --skip-test-db ` +
        `--auth-root-authentication-method=normal >${folder}/log/mariadb-install.log 2>&1`,
    )
  const isUp = async (): Promise<boolean> =>
    (await host.run(`mariadb -S ${place}/socket -uroot -e 'select 1'`, 'root', { mayFail: true })).code === 0
  if (!isNew && (await isUp())) return
  await host.run(
    // The data ends with the site, so it need not be synced to disk.
    `setsid mariadbd --no-defaults --user=mysql --datadir=${place}/data --socket=${place}/socket ` +
      `--skip-networking --pid-file=${place}/pid ` +
      '--innodb-buffer-pool-size=64M --innodb-lock-wait-timeout=900 ' +
      '--innodb-flush-log-at-trx-commit=0 --skip-log-bin ' +
      `</dev/null >>${folder}/log/mariadb.log 2>&1 &`,
  )
  await until('MariaDB answers', isUp, () =>
    readFileSync(join(folder, 'log', 'mariadb.log'), 'utf8').slice(-2000),
  )
  if (isNew)
    await host.run(
      `mariadb -S ${place}/socket -uroot -e "create database slurm_acct; create user ` +
        `slurm@localhost identified by 'slurm'; grant all on slurm_acct.* to slurm@localhost"`,
    )
}
