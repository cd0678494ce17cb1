import { copyFileSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { run } from '../../sites/ground.ts'
import { imageArchive, kubernetesImages } from '../../sites/kubernetes-images.ts'
import { configFromEnvironment } from '../../src/config.ts'
import type { KubernetesSite } from '../../sites/kubernetes.ts'

/** What Node needs of a machine besides the C library, and GNU time. */
const programs =
  'for file in "$2" /usr/bin/time; do ldd "$file" | grep -oE "/[^ :]+\\.so[^ :]*"; done | sort ' +
  '-u | while read -r file; do mkdir -p "$1/${file%/*}" && cp -L "$file" "$1/$file"; done; cp ' +
  '/usr/bin/time "$1/usr/bin/"'

/** The environment of that image. */
export const toolVariables = [
  'PATH=/opt/tool/bin:/usr/local/bin:/usr/bin:/bin',
  'MARK=1',
  'TOOLS=/opt/tools',
] as const

/**
 * An image in the cluster's registry that has all a site can have: the GNU tools, GNU time, the
 * libraries of Node, a static busybox to lend, and a program `tool`, which only its PATH leads to.
 * @returns its name
 */
export const toolImage = async (site: KubernetesSite): Promise<string> => {
  const { gnu } = await kubernetesImages(configFromEnvironment().cacheDir)
  const work = mkdtempSync(join(site.folder, 'image-'))
  try {
    const root = join(work, 'root')
    mkdirSync(root)
    await run('tar', ['-xf', gnu, '-C', work, 'layer.tar'])
    await run('tar', ['-xf', join(work, 'layer.tar'), '-C', root])
    await run('/bin/sh', ['-ec', programs, 'sh', root, process.execPath])
    copyFileSync('/bin/busybox', join(root, 'usr/bin/busybox.static'))
    mkdirSync(join(root, 'opt/tool/bin'), { recursive: true })
    writeFileSync(join(root, 'opt/tool/bin/tool'), '#!/bin/sh\nenv\n', { mode: 0o755 })
    const archive = join(work, 'tools.tar')
    await imageArchive(root, 'docker.io/local/tools:1', { Env: [...toolVariables] }, archive)
    await site.registry.push(archive, 'tools:1')
    return `${site.registry.address}/tools:1`
  } finally {
    rmSync(work, { recursive: true, force: true })
  }
}
