import { createHash, randomFillSync } from 'node:crypto'
import { closeSync, createWriteStream, mkdirSync, openSync, rmSync, statSync, writeSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { run } from '../../sites/ground.ts'
import { startDaemon } from '../daemon.ts'
import { newFolder } from '../folder.ts'
import { programsMissing } from '../needs.ts'
import type { Benchmark } from '../report.ts'
import { interleaved, medianRatio, secondsOf } from '../rounds.ts'
import { connected, memoryDuring } from './measure.ts'

/** Writes random bytes under their digest, as the store of artifacts keeps them. @returns the digest */
const plantArtifact = (images: string, mebibytes: number): string => {
  const [sum, aside] = [createHash('sha256'), join(images, 'planted')]
  mkdirSync(images, { recursive: true })
  const file = openSync(aside, 'w')
  const piece = Buffer.alloc(1024 ** 2)
  for (let n = 0; n < mebibytes; n += 1) {
    randomFillSync(piece)
    sum.update(piece)
    writeSync(file, piece)
  }
  closeSync(file)
  return sum.digest('hex')
}

export const recordZip: Benchmark = {
  about: 'export of an instance with an image of 1 GiB of random bytes, against zip -0 of the same file',
  missing: () => programsMissing({ zip: 'zip' }),
  async run({ rounds, tiny }) {
    const mebibytes = tiny ? 16 : 1_024
    const folder = newFolder('zip-')
    const daemon = await startDaemon()
    const client = await connected(daemon)
    try {
      const images = join(daemon.dataDir, 'artifacts', 'images')
      const hex = plantArtifact(images, mebibytes)
      const path = join(images, hex.slice(0, 2), hex)
      mkdirSync(dirname(path), { recursive: true })
      await run('mv', [join(images, 'planted'), path])
      // The rows that an export asks for, without the build that would have made them.
      await client.query(
        "insert into artifact_versions (id, artifact_id, name, version, scope) values ('i', 'i', 'I', '1', 'system')",
      )
      await client.query(
        "insert into artifact_variants (id, artifact_version_id, digest, format) values ('i', 'i', $1, 'sif')",
        [`sha256:${hex}`],
      )
      await client.query(
        `insert into artifact_locations (id, variant_id, scope, endpoint_id, uri, digest, available)
          values ('i', 'i', 'system', 'store', $1, $2, true)`,
        [`artifact://images/${hex}`, `sha256:${hex}`],
      )
      const grown: number[] = []
      const [ours, theirs] = [join(folder, 'ours.zip'), join(folder, 'theirs.zip')]
      const { cold, warm } = await interleaved(rounds, {
        export: () =>
          secondsOf(async () => {
            const found = await memoryDuring(daemon.facts().pids.daemon, async () => {
              const answer = await fetch(
                `${daemon.facts().baseUrl}/instances/default/export/?includeArtifacts=true`,
              )
              if (answer.status !== 200 || answer.body === null) throw new Error(await answer.text())
              await pipeline(Readable.fromWeb(answer.body as never), createWriteStream(ours))
            })
            grown.push(found.grown)
          }),
        'zip -0': () =>
          secondsOf(async () => {
            rmSync(theirs, { force: true })
            await run('zip', ['-q', '-0', '-j', theirs, path], { deadlineMs: 300_000 })
          }),
      })
      const unpacked = await run('sh', ['-c', `unzip -p ${ours} artifacts/sha256/${hex} | sha256sum`], {
        deadlineMs: 300_000,
      })
      if (!unpacked.stdout.startsWith(hex)) throw new Error('the archive holds other bytes')
      return {
        sides: Object.entries(warm).map(([name, values]) => ({
          ...{ name, unit: 's', warm: values },
          cold: cold[name as keyof typeof cold],
        })),
        goals: [
          {
            ...{ what: 'faster than zip -0', unit: '×', sense: 'least', goal: 4 },
            measured: medianRatio(warm['zip -0'], warm.export),
          },
          { what: 'memory', unit: ' MiB', measured: Math.max(...grown), sense: 'most', goal: 150 },
        ],
        notes: [
          `${String(mebibytes)} MiB; the archive has ${String(statSync(ours).size)} bytes, ` +
            'and unzip gives the same image',
          'the export reads the image for secrets and CRC-32, then reads it again to send it over HTTP, to a reader ' +
            'in JavaScript that writes it to disk; zip reads and writes it once, in one process',
        ],
        versions: {},
      }
    } finally {
      await client.end()
      await daemon.stop()
      rmSync(folder, { recursive: true, force: true })
    }
  },
}
