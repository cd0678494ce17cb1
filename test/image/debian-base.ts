import { execFile } from 'node:child_process'
import { copyFileSync, existsSync, mkdirSync, mkdtempSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { promisify } from 'node:util'
import type { DockerEngine } from '../../sites/docker.ts'

const run = promisify(execFile)

const suite = 'trixie'
const certificates = '/etc/ssl/certs/ca-certificates.crt'

/** The mirror that this machine's apt uses. */
export const mirror = async (): Promise<string> => {
  const { stdout } = await run('apt-get', ['indextargets', '--format', '$(REPO_URI)', 'Created-By: Packages'])
  return stdout.split('\n').find((uri) => /\/debian\/*$/.test(uri)) ?? 'http://deb.debian.org/debian'
}

/** A minimal Debian as a tar file in the cache, made once: about 50 s. */
const debianArchive = async (cacheDir: string): Promise<string> => {
  const archive = join(cacheDir, `debian-${suite}.tar`)
  if (existsSync(archive)) return archive
  mkdirSync(cacheDir, { recursive: true })
  const work = mkdtempSync(join(cacheDir, 'debootstrap-'))
  try {
    const root = join(work, 'root')
    await run('debootstrap', ['--variant=minbase', suite, root, await mirror()], { maxBuffer: 2 ** 26 })
    await run('tar', [
      '-C',
      root,
      '--exclude=./var/cache/apt/archives/*.deb',
      '--exclude=./var/lib/apt/lists/*',
      '-cf',
      join(work, 'archive.tar'),
      '.',
    ])
    renameSync(join(work, 'archive.tar'), archive)
  } finally {
    rmSync(work, { recursive: true, force: true })
  }
  return archive
}

/**
 * An image of Debian made from its packages, for machines that can reach package mirrors but no
 * image registry. Its builds use npm's registry and the certificates of this machine, so that a
 * proxy that signs for the registry is no obstacle. Gives the image's name.
 */
export const debianBase = async (
  { docker }: DockerEngine,
  options: { cacheDir: string; scratch: string },
): Promise<string> => {
  const plain = `orrery-test-debian:${suite}`
  if ((await docker('images', '--quiet', plain)) === '')
    await docker('import', await debianArchive(options.cacheDir), plain)
  const context = mkdtempSync(join(options.scratch, 'base-'))
  const { stdout: registry } = await run('npm', ['config', 'get', 'registry'])
  const lines = [`FROM ${plain}`, `ENV npm_config_registry=${registry.trim()}`]
  if (existsSync(certificates)) {
    copyFileSync(certificates, join(context, 'certificates.crt'))
    lines.push(
      'COPY certificates.crt /opt/',
      'ENV NODE_EXTRA_CA_CERTS=/opt/certificates.crt npm_config_cafile=/opt/certificates.crt',
    )
  }
  writeFileSync(join(context, 'Dockerfile'), `${lines.join('\n')}\n`)
  const base = `orrery-test-base:${suite}`
  await docker('build', '--tag', base, context)
  return base
}
