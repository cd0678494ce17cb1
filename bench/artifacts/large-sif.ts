import { createCipheriv, createHash } from 'node:crypto'
import { createReadStream, createWriteStream, rmSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { pack } from 'tar-stream'
import { haveApptainer } from '../../sites/apptainer.ts'
import { run } from '../../sites/ground.ts'
import { addContent } from '../../src/drivers/build/packing.ts'
import { newFolder } from '../folder.ts'
import { allMissing, programsMissing, rootMissing } from '../needs.ts'
import { versionOf } from '../reach/places.ts'
import type { Benchmark } from '../report.ts'
import { interleaved, median, medianRatio, secondsOf } from '../rounds.ts'

const mebibyte = 2 ** 20

const writeTar = (path: string, fill: (tar: ReturnType<typeof pack>) => Promise<void>): Promise<unknown> => {
  const tar = pack()
  const written = pipeline(Readable.from(tar as AsyncIterable<Buffer>), createWriteStream(path))
  return Promise.all([written, fill(tar).then(() => tar.finalize())])
}

/** An archive as `docker save` writes it: one layer, half of it bytes that do not compress. */
const makeImage = async (folder: string, mebibytes: number): Promise<string> => {
  const layer = join(folder, 'layer.tar')
  const random = createCipheriv('aes-128-ctr', Buffer.alloc(16, 1), Buffer.alloc(16))
  const zeros = Buffer.alloc(mebibyte)
  await writeTar(layer, async (tar) => {
    for (let at = 0; at < mebibytes; at += 1) {
      const bytes = random.update(zeros)
      const content = at % 2 === 0 ? bytes : Buffer.from(bytes.toString('hex').slice(0, mebibyte))
      const name = `srv/${String(at % 16)}/${String(at)}`
      await addContent(tar, { name, size: content.length, mtime: new Date(0) }, Readable.from([content]))
    }
  })
  const hash = createHash('sha256')
  for await (const piece of createReadStream(layer)) hash.update(piece as Buffer)
  const digest = hash.digest('hex')
  const config = Buffer.from(
    JSON.stringify({
      ...{ architecture: 'amd64', os: 'linux', created: '2020-01-01T00:00:00Z', config: {} },
      rootfs: { type: 'layers', diff_ids: [`sha256:${digest}`] },
    }),
  )
  const configName = createHash('sha256').update(config).digest('hex')
  const archive = join(folder, 'image.tar')
  const manifest = [
    { Config: `${configName}.json`, RepoTags: ['bench/large:1'], Layers: [`${digest}/layer.tar`] },
  ]
  await writeTar(archive, async (tar) => {
    const add = (name: string, bytes: Buffer) =>
      addContent(tar, { name, size: bytes.length }, Readable.from([bytes]))
    await add(`${configName}.json`, config)
    const { size } = statSync(layer)
    const content = createReadStream(layer, { highWaterMark: mebibyte }) as AsyncIterable<Buffer>
    await addContent(tar, { name: `${digest}/layer.tar`, size }, content)
    await add('manifest.json', Buffer.from(JSON.stringify(manifest)))
  })
  rmSync(layer)
  return archive
}

export const largeSif: Benchmark = {
  about: 'a SIF file of an image of 500 MiB, from the archive to the file, against apptainer build',
  missing: () =>
    allMissing(rootMissing(), programsMissing({ sqfstar: 'squashfs-tools', patchelf: 'patchelf' })),
  async run({ rounds, tiny }) {
    await haveApptainer()
    const folder = newFolder('large-sif-')
    try {
      const archive = await makeImage(folder, tiny ? 16 : 500)
      const environment = { HOME: folder, PATH: '/usr/sbin:/usr/bin:/sbin:/bin', APPTAINER_TMPDIR: folder }
      const memory: number[] = []
      const work = join(folder, 'work')
      const digests = new Set<string>()
      const digestOf = async (path: string): Promise<string> =>
        (await run('sha256sum', [path], { environment })).stdout.slice(0, 64)
      const ours = async (): Promise<number> => {
        const program = join(import.meta.dirname, 'pack-sif.ts')
        const seconds = await secondsOf(async () => {
          const { stdout } = await run(process.execPath, [program, archive, work], {
            environment,
            deadlineMs: 600_000,
          })
          memory.push(Number(stdout))
        })
        digests.add(await digestOf(join(work, 'output')))
        return seconds
      }
      const apptainer = (): Promise<number> =>
        secondsOf(() =>
          run('apptainer', ['-q', 'build', '-F', join(folder, 'image.sif'), `docker-archive:${archive}`], {
            environment,
            deadlineMs: 600_000,
          }),
        )
      const { cold, warm } = await interleaved(rounds, { ours, apptainer })
      if (digests.size !== 1) throw new Error('the same image became files of several digests')
      const sizes = [join(work, 'output'), join(folder, 'image.sif')].map(
        (path) => statSync(path).size / mebibyte,
      )
      return {
        sides: [
          { name: 'Orrery, docker archive to SIF', unit: 's', cold: cold.ours, warm: warm.ours },
          { name: 'apptainer build docker-archive:', unit: 's', cold: cold.apptainer, warm: warm.apptainer },
        ],
        goals: [
          {
            ...{ what: 'against apptainer build', unit: '×', sense: 'most', goal: 1.1 },
            measured: medianRatio(warm.ours, warm.apptainer),
          },
          {
            ...{ what: 'memory of the packing process', unit: 'MiB', sense: 'most', goal: 256 },
            measured: median(memory),
          },
        ],
        notes: [
          'Half of the image does not compress, half is hexadecimal text; each file of Orrery has the same digest. ' +
            `Orrery’s file has ${sizes[0]?.toFixed(0) ?? ''} MiB, Apptainer’s ${sizes[1]?.toFixed(0) ?? ''} MiB. ` +
            'Orrery’s time includes the start of a Node process; sqfstar’s own memory is not counted',
        ],
        versions: { Apptainer: versionOf((await run('apptainer', ['--version'], { environment })).stdout) },
      }
    } finally {
      rmSync(folder, { recursive: true, force: true })
    }
  },
}
