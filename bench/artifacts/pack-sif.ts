import { createReadStream, mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { readImage } from '../../src/drivers/build/image.ts'
import { writeSif } from '../../src/drivers/build/sif.ts'

/** Packs an archive of `docker save` as the service does. Prints its largest memory in MiB. */

const [archive = '', folder = ''] = process.argv.slice(2)
mkdirSync(folder, { recursive: true })
const image = await readImage(
  createReadStream(archive, { highWaterMark: 1_048_576 }) as AsyncIterable<Buffer>,
  join(folder, 'image'),
  () => undefined,
)
await writeSif(image, join(folder, 'output'), { folder, signal: new AbortController().signal })
process.stdout.write(`${String(process.resourceUsage().maxRSS / 1_024)}\n`)
