import { mkdirSync, rmSync, statSync } from 'node:fs'
import { open } from 'node:fs/promises'
import { join } from 'node:path'
import {
  CompleteMultipartUploadCommand,
  CreateMultipartUploadCommand,
  S3Client,
  UploadPartCommand,
  type CompletedPart,
} from '@aws-sdk/client-s3'
import { run } from '../../sites/ground.ts'
import { startS3 } from '../../sites/s3.ts'
import { startDaemon } from '../daemon.ts'
import { newFolder } from '../folder.ts'
import { programsMissing } from '../needs.ts'
import type { Benchmark, Goal } from '../report.ts'
import { interleaved, median, medianRatio, secondsOf } from '../rounds.ts'
import { environmentOf, localStorage, plantLarge, plantSmall, secondsOfJob, withVault } from './lab.ts'

const transfers = [4, 16, 32]

/** The defaults of `Upload` in AWS's SDK (@aws-sdk/lib-storage): parts of 5 MiB, four at once. */
const [partBytes, partsAtOnce] = [5 * 2 ** 20, 4]

const sdkSide = "the SDK's parts, up"

/** Sends a file by the SDK's commands, as its `Upload` does. */
const uploadParts = async (client: S3Client, object: { Bucket: string; Key: string }, path: string) => {
  await using file = await open(path)
  const { size } = await file.stat()
  const { UploadId } = await client.send(
    new CreateMultipartUploadCommand({ ...object, ChecksumAlgorithm: 'CRC32' }),
  )
  const parts: CompletedPart[] = []
  let next = 0
  const sendParts = async (): Promise<void> => {
    while (next * partBytes < size) {
      const at = next++
      const { buffer, bytesRead } = await file.read(
        Buffer.allocUnsafe(partBytes),
        0,
        partBytes,
        at * partBytes,
      )
      const part = { ...object, UploadId, PartNumber: at + 1, Body: buffer.subarray(0, bytesRead) }
      const { ETag, ChecksumCRC32 } = await client.send(new UploadPartCommand(part))
      parts[at] = { PartNumber: at + 1, ETag, ChecksumCRC32 }
    }
  }
  await Promise.all(Array.from({ length: partsAtOnce }, sendParts))
  const whole = { ...object, UploadId, MultipartUpload: { Parts: parts } }
  await client.send(new CompleteMultipartUploadCommand(whole))
}

export const copiesS3: Benchmark = {
  about:
    'copies between a folder and an S3 server: 1 GiB, and 10,000 files of 4 KiB, against rclone, and 1 GiB up ' +
    'against the SDK of AWS',
  missing: () => programsMissing({ rclone: 'rclone' }),
  async run({ rounds, tiny }) {
    const [mebibytes, files] = tiny ? [16, 500] : [1_024, 10_000]
    const root = newFolder('storages-')
    await using site = await startS3()
    for (const name of ['large', 'small']) mkdirSync(join(root, name))
    plantLarge(join(root, 'large', 'file'), mebibytes)
    plantSmall(join(root, 'small'), files)
    const daemon = await startDaemon({ ...withVault(root), SERVICE_ALLOW_LOOPBACK_CONNECTIONS: 'true' })
    try {
      const bucket = site.bucket('bucket')
      const { credentialRef } = (
        await daemon.call('POST', '/cloud-credentials/', {
          ...{ id: 'site', provider: 'aws', credential: site.accessKey },
        })
      ).body
      const configuration = { endpointUrl: site.endpoint, region: 'us-east-1', pathStyle: true, signed: true }
      await daemon.call(
        'POST',
        '/environments/',
        environmentOf('lab', [
          localStorage('here', root),
          {
            ...{ id: 'bucket', name: 'bucket', type: 's3', endpoint: 's3://bucket' },
            credentialReference: credentialRef,
            configuration: { ...configuration, browseRoots: [{ path: '/' }] },
          },
        ]),
      )
      const remote =
        `:s3,provider=Other,env_auth=false,access_key_id=${site.accessKey.accessKeyId},` +
        `secret_access_key='${site.accessKey.secretAccessKey}',endpoint='${site.endpoint}',region=us-east-1:bucket`
      const rclone = (count: number, from: string, to: string) =>
        run(
          'rclone',
          [
            ...['copy', '--config', '/dev/null', '--transfers', String(count)],
            // It asks before each part whether it may come, and this server leaves that unanswered: a
            // second for each.
            ...['--expect-continue-timeout', '0s', from, to],
          ],
          { deadlineMs: 900_000 },
        )
      const sdk = new S3Client({
        ...{ endpoint: site.endpoint, region: 'us-east-1', forcePathStyle: true },
        credentials: site.accessKey,
      })
      let number = 0
      const up = async (load: string): Promise<number> => {
        number += 1
        const destinationPath = `ours-${number}`
        const seconds = await secondsOfJob(daemon, '/storages/here/copies/', {
          ...{ path: load, destinationStorageId: 'bucket', destinationPath },
        })
        rmSync(join(bucket, destinationPath), { recursive: true })
        return seconds
      }
      const down = async (load: string): Promise<number> => {
        number += 1
        const destinationPath = `back-${number}`
        const seconds = await secondsOfJob(daemon, '/storages/bucket/copies/', {
          ...{ path: `kept-${load}`, destinationStorageId: 'here', destinationPath },
        })
        rmSync(join(root, destinationPath), { recursive: true })
        return seconds
      }
      for (const load of ['large', 'small']) await rclone(16, join(root, load), `${remote}/kept-${load}`)
      const sides = (load: string) => ({
        'Orrery, up': () => up(load),
        'Orrery, down': () => down(load),
        ...(Object.fromEntries(
          transfers.flatMap((count) => [
            [
              `rclone ${count}, up`,
              async () => {
                const seconds = await secondsOf(() => rclone(count, join(root, load), `${remote}/theirs`))
                rmSync(join(bucket, 'theirs'), { recursive: true })
                return seconds
              },
            ],
            [
              `rclone ${count}, down`,
              async () => {
                const to = join(root, 'theirs')
                const seconds = await secondsOf(() => rclone(count, `${remote}/kept-${load}`, to))
                rmSync(to, { recursive: true })
                return seconds
              },
            ],
          ]),
        ) as Record<string, () => Promise<number>>),
      })
      const byTheSdk = async (): Promise<number> => {
        const seconds = await secondsOf(() =>
          uploadParts(sdk, { Bucket: 'bucket', Key: 'theirs/file' }, join(root, 'large', 'file')),
        )
        if (statSync(join(bucket, 'theirs', 'file')).size !== mebibytes * 2 ** 20)
          throw new Error('the SDK has sent another number of bytes')
        rmSync(join(bucket, 'theirs'), { recursive: true })
        return seconds
      }
      const loads = {
        large: await interleaved<string>(rounds, { ...sides('large'), [sdkSide]: byTheSdk }),
        small: await interleaved<string>(rounds, sides('small')),
      }
      const bestOf = (warm: Record<string, number[]>, way: string): number[] => {
        const all = transfers.map((count) => warm[`rclone ${count}, ${way}`] ?? [])
        return all.toSorted((a, b) => median(a) - median(b))[0] ?? []
      }
      const names = { large: `${mebibytes} MiB`, small: `${files.toLocaleString('en')} files of 4 KiB` }
      return {
        sides: (['large', 'small'] as const).flatMap((load) =>
          Object.entries(loads[load].warm).map(([name, warm]) => ({
            ...{ name: `${names[load]}: ${name}`, unit: 's', warm, cold: loads[load].cold[name] ?? 0 },
          })),
        ),
        goals: (['large', 'small'] as const)
          .flatMap((load) =>
            ['up', 'down'].map((way): Goal => ({
              ...{ what: `${names[load]}, ${way}: rate over the best of rclone`, unit: '×' },
              ...{ sense: 'least', goal: 1 },
              measured: medianRatio(bestOf(loads[load].warm, way), loads[load].warm[`Orrery, ${way}`] ?? []),
            })),
          )
          .concat({
            ...{ what: `${names.large}, up: rate over the SDK's parts`, unit: '×', sense: 'least', goal: 1 },
            measured: medianRatio(loads.large.warm[sdkSide] ?? [], loads.large.warm['Orrery, up'] ?? []),
          }),
        notes: [
          `The SDK's side sends ${String(partsAtOnce)} parts of 5 MiB at once by its commands, the defaults of its ` +
            '`Upload`, in the process of the benchmark.',
          'Both ends and the store are on this machine; Orrery records each entry and the end durably, rclone ' +
            'records nothing.',
          'A profile of four copies of 1 GiB up: of 73 s the daemon works 40: SHA-256 12 (of each byte as it is ' +
            'read, sent and signed), garbage collection 8, MD5 7, writes to sockets 4, joined pieces 2.',
          'A profile of 10,000 files five times up: of 112 s the daemon works 101, 48 in the SDK, 14 in its own ' +
            'code, 7 garbage collection; five times down: 88 of 115 s, 44 in the SDK, 11 in its own code, ' +
            '5 garbage collection.',
          'A profile of 1 GiB down: the daemon works 4 of 7 s (garbage collection 1, SHA-256 0.6, bytes from the ' +
            'store 0.5, bytes to the process that writes 0.9) and else waits for that process, which also sums and ' +
            'flushes them; flushes ahead of the end, and a second piece under way, gain 6 %.',
        ],
        versions: { rclone: (await run('rclone', ['version'])).stdout.split('\n')[0] ?? '' },
      }
    } finally {
      await daemon.stop()
      rmSync(root, { recursive: true, force: true })
    }
  },
}
