import { chmodSync, cpSync, mkdtempSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

const checkout = new URL('../../', import.meta.url).pathname

export interface Patch {
  file: string
  /** Must occur exactly once. */
  replace: string
  by: string
}

/** A copy of the programs in a folder of its own, changed as told; runs as the checkout does. */
export const copyBuild = (patches: readonly Patch[]): string => {
  const folder = mkdtempSync(join(tmpdir(), 'orrery-build-'))
  chmodSync(folder, 0o755)
  for (const part of ['src', 'workflows', 'activities', 'temporal-config', 'package.json', 'tsconfig.json'])
    cpSync(join(checkout, part), join(folder, part), { recursive: true })
  symlinkSync(join(checkout, 'node_modules'), join(folder, 'node_modules'))
  for (const { file, replace, by } of patches) {
    const path = join(folder, file)
    const text = readFileSync(path, 'utf8')
    if (text.split(replace).length !== 2) throw new Error(`${file} does not hold once: ${replace}`)
    writeFileSync(
      path,
      text.replace(replace, () => by),
    )
  }
  return folder
}
