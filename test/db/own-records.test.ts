import { expect, test } from '@jest/globals'
import { openClusters } from '../../src/connections/clusters.ts'
import { openLinks, type LinkParts } from '../../src/connections/links.ts'
import { openSshSessions } from '../../src/clients/ssh/sessions.ts'
import { functionCredential, slurmToken } from '../../src/connections/runtime-credentials.ts'
import type { Db } from '../../src/db/sql.ts'
import { openMachineShells } from '../../src/domains/cloud/ssh-target.ts'
import { asDriverError } from '../../src/drivers/runtime/contract/results.ts'
import { kubernetesTrouble } from '../../src/drivers/runtime/kubernetes/trouble.ts'
import { openAsking } from '../../src/drivers/runtime/serverless/asking.ts'
import { Refusal } from '../../src/refusal.ts'
import type { SecretOpener } from '../../src/vault/secret.ts'

/** What PostgreSQL answers while it starts, after it was killed. */
const startsUp = Object.assign(new Error('the database system is starting up'), { code: '57P03' })
const lacksKey = new Refusal('unavailable', 'the vault key file lacks the key of 2026')
const unknown = new Refusal('unacceptable', 'vault:ssh-key/gone names nothing')

const fails = <T>(error: Error) => ({
  ...{ db: { maybe: () => Promise.reject(error), many: () => Promise.reject(error) } as unknown as Db },
  secrets: { open: (): Promise<T> => Promise.reject(error) } as unknown as SecretOpener,
})
const caught = async (work: Promise<unknown>): Promise<unknown> =>
  work.then(
    () => undefined,
    (error: unknown) => error,
  )

/** The classes that drivers give the errors with which the ways to sites fail. */
const troubles = async (error: Error): Promise<Record<string, string>> => {
  const { db, secrets } = fails(error)
  const sessions = openSshSessions()
  try {
    const links = openLinks({ db, secrets, sessions } as unknown as LinkParts)
    const clusters = openClusters({ db, links, addressAllowed: () => true })
    const login = sessions.shell({
      ...{ host: '127.0.0.1', port: 1, username: 'ada', hostKeys: { policy: 'strict' as const } },
      secret: async () => ({ privateKey: await slurmToken(secrets, 'vault:ssh-key/a') }),
    })
    return {
      connection: asDriverError(await caught(links.shell('login').run('true'))).trouble,
      cluster: kubernetesTrouble(await caught(clusters.cluster('pods').request({ path: '/api' } as never)))
        .trouble,
      key: asDriverError(await caught(login.run('true'))).trouble,
      machine: asDriverError(
        await caught(openMachineShells({ db, vault: secrets, sessions })('a').run('true')),
      ).trouble,
      function: asDriverError(
        await caught(
          openAsking({
            options: { credential: () => functionCredential(secrets, 'vault:kubernetes-token/a') },
            settings: () => ({ configuration: {} }),
          } as never)('a', Buffer.alloc(0), {} as never),
        ),
      ).trouble,
      token: asDriverError(await caught(slurmToken(secrets, 'vault:kubernetes-token/a'))).trouble,
    }
  } finally {
    await sessions.close()
  }
}

test.each([
  ['PostgreSQL starts', startsUp],
  ['PostgreSQL is a standby', Object.assign(new Error('read-only transaction'), { code: '25006' })],
  ['the vault lacks a key', lacksKey],
])(
  'while %s, nothing is known of a site: no attempt fails by it, and no login is refused',
  async (_, error) => {
    expect(await troubles(error)).toEqual({
      ...{ connection: 'unknown', cluster: 'unknown', key: 'unknown', token: 'unknown' },
      ...{ machine: 'unknown', function: 'unknown' },
    })
  },
)

test('a credential that does not exist is no passing trouble', async () => {
  expect(await troubles(unknown)).toMatchObject({
    ...{ key: 'refused', token: 'infrastructure', function: 'refused' },
  })
})
