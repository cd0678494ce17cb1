import { expect, test } from '@jest/globals'
import { addressJudge } from '../../../src/clients/denied-networks.ts'
import { openGcs } from '../../../src/clients/gcs.ts'
import { openHttp } from '../../../src/clients/http.ts'
import { openS3Storage } from '../../../src/drivers/storage/s3.ts'
import type { StorageDriver } from '../../../src/drivers/storage/contract.ts'
import type { ServiceAccount } from '../../../sites/google-account.ts'
import { startGcs, type GcsSite } from '../../../sites/gcs.ts'
import { at, bytesFrom, contentOf, faultOf, storageConformance, storageKinds } from './conformance.ts'

const http = openHttp({ addressAllowed: addressJudge({ allowLoopback: true }) })

const openBucket = (
  site: Pick<GcsSite, 'endpoint'>,
  bucket: string,
  account: ServiceAccount | undefined,
  prefix = '',
): StorageDriver => {
  const credential = account && { clientEmail: account.client_email, privateKey: account.private_key }
  return openS3Storage(openGcs({ http, place: { endpoint: site.endpoint, bucket }, credential }), {
    prefix: at(prefix),
    signed: account !== undefined,
  })
}

storageConformance("a bucket of Google's storage", storageKinds.bucketOfGoogle, async () => {
  const site = await startGcs()
  await site.bucket('whole')
  const again = (): StorageDriver => openBucket(site, 'whole', site.account)
  return { driver: again(), again, stop: site.stop }
})

storageConformance("a prefix of a bucket of Google's storage", storageKinds.bucketOfGoogle, async () => {
  const site = await startGcs()
  await site.bucket('part')
  const again = (): StorageDriver => openBucket(site, 'part', site.account, 'deep/prefix')
  return { driver: again(), again, prefix: at('deep/prefix'), stop: site.stop }
})

test('only the account that signs may read, and what is refused says why and what helps', async () => {
  await using site = await startGcs()
  await site.bucket('closed')
  await site.bucket('open')
  const own = openBucket(site, 'closed', site.account)
  await own.write(at('file'), bytesFrom('content'))
  await openBucket(site, 'open', site.account).write(at('d/file'), bytesFrom('public'))
  site.publish('open')
  const messageOf = async (work: Promise<unknown>): Promise<string> =>
    String(await work.catch((error: unknown) => error))

  expect(await messageOf(openBucket(site, 'closed', undefined).read(at('file')))).toMatch(
    /configuration\.signed/,
  )
  expect(await faultOf(openBucket(site, 'closed', site.stranger).read(at('file')))).toBe('denied')
  const forged = { ...site.account, private_key: site.stranger.private_key }
  expect(await faultOf(openBucket(site, 'closed', forged).list([], { limit: 1 }))).toBe('credential')
  expect(await messageOf(openBucket(site, 'nobucket', site.account).list([], { limit: 1 }))).toMatch(
    /correct the endpoint/,
  )
  const everybody = openBucket(site, 'open', undefined)
  expect((await contentOf(everybody, at('d/file'))).toString()).toBe('public')
  expect(await faultOf(everybody.write(at('new'), bytesFrom('x')))).toBe('denied')
})

test('a large file goes in parts, exactly as large as it is, also at the edges of parts', async () => {
  await using site = await startGcs()
  await site.bucket('large')
  const driver = openBucket(site, 'large', site.account)
  const part = 8 * 1024 * 1024
  for (const size of [part - 1, part, part + 1, 2 * part, 2 * part + 77]) {
    const content = Buffer.alloc(size, size % 251)
    const written = await driver.write(at(`f${size}`), bytesFrom(content))
    expect([size, written.receivedBytes, written.entry?.sizeBytes]).toEqual([size, size, size])
    expect([size, (await contentOf(driver, at(`f${size}`))).equals(content)]).toEqual([size, true])
  }
  await driver.close()
}, 60_000)
