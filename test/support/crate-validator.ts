import { execFile } from 'node:child_process'
import { existsSync, mkdirSync, renameSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { promisify } from 'node:util'

const run = promisify(execFile)
/** `prov` loads its writers of XML too, which need lxml. */
const versions = { 'roc-validator': '0.13.0', prov: '2.1.1', lxml: '6.1.3' }
/** Its package holds the context of RO-Crate, which no package for Python does. Only that file is read. */
const contextOf = 'ro-crate@3.7.2'

/**
 * Programs that judge exports, installed once into a virtual environment of the cache folder (about
 * a minute), and the context of RO-Crate.
 */
export const installCrateValidator = async (
  cacheDir: string,
): Promise<{ python: string; context: string }> => {
  const place = join(cacheDir, `crate-validator-${Object.values(versions).join('-')}`)
  const python = join(place, 'bin', 'python')
  const found = { python, context: join(place, 'package', 'lib', 'context.json') }
  const complete = join(place, 'complete')
  if (existsSync(complete)) return found
  rmSync(place, { recursive: true, force: true })
  await run('python3', ['-m', 'venv', place])
  await run(python, [
    ...['-m', 'pip', 'install', '--quiet', '--disable-pip-version-check'],
    ...Object.entries(versions).map(([name, version]) => `${name}==${version}`),
  ])
  mkdirSync(join(place, 'package'), { recursive: true })
  const { stdout } = await run('npm', ['pack', '--silent', '--pack-destination', place, contextOf])
  await run('tar', ['xzf', join(place, stdout.trim()), '-C', place, 'package/lib/context.json'])
  // Two test runs may install side by side, so the marker is written last and atomically.
  await run('touch', [`${complete}.part`])
  renameSync(`${complete}.part`, complete)
  return found
}
