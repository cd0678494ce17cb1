import { assign, readProgram } from '../../../shell/program.ts'
import { quote } from '../../../shell/quote.ts'
import type { BatchSite } from '../batch/site.ts'
import { DriverError } from '../contract/driver.ts'
import { errorTextOf } from '../remote/error-text.ts'
import { linkTools } from './courier/scripts.ts'
import { toolsFolder } from './job.ts'
import type { KubernetesSettings } from './settings.ts'

/**
 * The tools that the site lends to tasks whose image lacks them, and the account that owns its
 * files.
 */
export interface SiteTools {
  /** Whether a static busybox is where task Pods can use it. */
  lent: boolean
  /** Its path in the helper image; '': it has none. */
  busybox: string
  /** The keeper's own account: only it can access its files. */
  account: Readonly<Record<string, number>>
}

const program = `${linkTools}${readProgram(import.meta.dirname, 'tools.sh')}`
const usualPlaces = ['/bin/busybox', '/usr/bin/busybox', '/bin/busybox.static', '/usr/bin/busybox.static']

/**
 * Whether a program brings its own libraries: no segment of it names an interpreter (PT_INTERP).
 * `head` is the beginning of an ELF file of 64 bits.
 */
export function isStatic(head: Buffer): boolean {
  if (head.length < 64 || head.toString('latin1', 0, 4) !== '\x7fELF' || head[4] !== 2 || head[5] !== 1)
    return false
  const [at, size, count] = [Number(head.readBigUInt64LE(32)), head.readUInt16LE(54), head.readUInt16LE(56)]
  if (at + size * count > head.length) return false
  return !Array.from({ length: count }, (_, segment) => head.readUInt32LE(at + segment * size)).includes(3)
}

/**
 * Puts a static busybox where task Pods can use it, once; where the helper image has none, an image
 * needs a shell of its own.
 */
async function installTools(
  { shell, root }: BatchSite,
  toolsPath: string,
  carried: boolean,
): Promise<Omit<SiteTools, 'account'>> {
  const folder = `${await root()}/${toolsFolder}`
  for (const place of toolsPath === '' ? usualPlaces : [toolsPath]) {
    const parameters = assign({ FOLDER: folder, BUSYBOX: place, CARRIED: carried ? '1' : '' })
    const { stdout } = await shell.run(`${parameters}${program}look`)
    const [first, from = ''] = stdout.toString('latin1', 0, 2000).split('\n')
    if (first === 'ready') return { lent: true, busybox: from }
    if (!isStatic(stdout)) continue
    const { code, stderr } = await shell.run(`${parameters}${program}install`)
    if (code === 0) return { lent: true, busybox: place }
    throw new DriverError(
      'infrastructure',
      `cannot put the tools of tasks on the volume: ${errorTextOf(stderr)}`,
    )
  }
  if (toolsPath !== '')
    throw new DriverError(
      'refused',
      `toolsPath ${JSON.stringify(toolsPath)} is no static program of the helper image; name a static busybox there`,
    )
  return { lent: false, busybox: '' }
}

/** @param carried no file system is shared, so the Pods' tools are copied into them */
export async function siteTools(
  site: BatchSite,
  { toolsPath, helperImage }: Pick<KubernetesSettings, 'toolsPath' | 'helperImage'>,
  carried: boolean,
): Promise<SiteTools> {
  const { shell, root } = site
  const [tools, { stdout }, at] = await Promise.all([
    installTools(site, toolsPath, carried),
    shell.run('id -u; id -g'),
    root(),
  ])
  const lock = `command -v flock || [ -x ${quote(`${at}/${toolsFolder}/flock`)} ]`
  if (carried && (await shell.run(lock)).code !== 0)
    throw new DriverError(
      'refused',
      `helperImage ${JSON.stringify(helperImage)} lacks flock, which it needs without a volume`,
    )
  const [runAsUser = Number.NaN, runAsGroup = Number.NaN] = stdout.toString().trim().split('\n').map(Number)
  const known = Number.isInteger(runAsUser) && Number.isInteger(runAsGroup)
  return { ...tools, account: known ? { runAsUser, runAsGroup } : {} }
}
