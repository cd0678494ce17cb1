import { createHash } from 'node:crypto'
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  renameSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { join } from 'node:path'
import { folderAt, run } from './ground.ts'

/**
 * Container images from programs of this machine, as docker archives: `ctr images import`, `skopeo`
 * and `docker load` take them.
 */
export interface ImageArchives {
  /** `docker.io/local/pause:3.10`: what holds a Pod together. */
  readonly pause: string
  /** `docker.io/local/bb:1`: busybox with all its tools in `/bin`. */
  readonly busybox: string
  /** `docker.io/local/gnu:1`: what every Debian has, and no more. */
  readonly gnu: string
}

/**
 * Reaps what Pods with a shared process namespace leave to it, and ends at once when it is told to.
 */
const pauseSource = `#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
static void end(int s) { _exit(0); }
static void reap(int s) { while (waitpid(-1, 0, WNOHANG) > 0); }
int main(void) { signal(SIGTERM, end); signal(SIGINT, end); signal(SIGCHLD, reap); for (;;) pause(); }
`

/** Files of Essential packages and the libraries that they load, under the machine's paths. */
const gatherGnu = `set -e
list=$(mktemp); trap 'rm -f "$list"' EXIT
dpkg -L bash dash coreutils findutils grep sed tar gzip util-linux perl-base hostname |
  grep -E '^(/usr)?/s?bin/|/perl-base/' | while read -r file; do [ ! -f "$file" ] || echo "$file"; done > "$list"
xargs ldd < "$list" 2>/dev/null | grep -oE '/[^ :]+\\.so[^ :]*' | sort -u >> "$list"
tar --dereference --absolute-names --transform 's,^/,,' -cf - --files-from "$list" | tar -xf - -C "$1"
`

/**
 * The images, made when the cache lacks them: about 2 s. @throws Error naming what the machine
 * lacks
 */
export const kubernetesImages = async (cacheDir: string): Promise<ImageArchives> => {
  // What is written here is the content, so another text is another folder.
  const version = createHash('sha256')
    .update(readFileSync(import.meta.filename))
    .digest('hex')
    .slice(0, 12)
  const folder = join(cacheDir, 'kubernetes', `images-${version}`)
  const archives = {
    pause: join(folder, 'pause.tar'),
    busybox: join(folder, 'busybox.tar'),
    gnu: join(folder, 'gnu.tar'),
  }
  if (existsSync(folder)) return archives
  mkdirSync(join(cacheDir, 'kubernetes'), { recursive: true })
  const temporary = mkdtempSync(join(cacheDir, 'kubernetes', 'images-new-'))
  try {
    const finished = folderAt(join(temporary, 'finished'))
    const pause = folderAt(join(temporary, 'pause'))
    await run('gcc', ['-static', '-Os', '-x', 'c', '-o', join(pause, 'pause'), '-'], { input: pauseSource })
    await imageArchive(
      pause,
      'docker.io/local/pause:3.10',
      { Entrypoint: ['/pause'] },
      join(finished, 'pause.tar'),
    )

    const busybox = withUsualFolders(join(temporary, 'busybox'))
    const program = existsSync('/usr/bin/busybox') ? '/usr/bin/busybox' : '/bin/busybox'
    cpSync(program, join(folderAt(join(busybox, 'bin')), 'busybox'))
    for (const name of (await run(program, ['--list'])).stdout
      .split('\n')
      .filter((tool) => tool !== '' && tool !== 'busybox'))
      symlinkSync('busybox', join(busybox, 'bin', name))
    await imageArchive(
      busybox,
      'docker.io/local/bb:1',
      { Env: ['PATH=/bin'], Cmd: ['sh'] },
      join(finished, 'busybox.tar'),
    )

    const gnu = withUsualFolders(join(temporary, 'gnu'))
    await run('/bin/sh', ['-c', gatherGnu, 'gather', gnu])
    const path = 'PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin'
    await imageArchive(
      gnu,
      'docker.io/local/gnu:1',
      { Env: [path], Cmd: ['bash'] },
      join(finished, 'gnu.tar'),
    )
    try {
      renameSync(finished, folder)
    } catch (error) {
      // Another start was first, with the same content.
      if (!existsSync(folder)) throw error
    }
    return archives
  } finally {
    rmSync(temporary, { recursive: true, force: true })
  }
}

const withUsualFolders = (root: string): string => {
  for (const name of ['etc', 'root', 'proc', 'sys', 'dev']) folderAt(join(root, name))
  folderAt(join(root, 'tmp'), 0o1777)
  writeFileSync(
    join(root, 'etc', 'passwd'),
    'root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n',
  )
  writeFileSync(join(root, 'etc', 'group'), 'root:x:0:\nnogroup:x:65534:\n')
  return root
}

/** A docker archive of one layer from a folder. Equal folders give equal archives. */
export const imageArchive = async (
  root: string,
  name: string,
  config: Readonly<Record<string, unknown>>,
  file: string,
): Promise<void> => {
  const work = folderAt(`${file}.parts`)
  const plain = ['--sort=name', '--owner=0', '--group=0', '--numeric-owner', '--mtime=@0']
  await run('tar', [...plain, '-C', root, '-cf', join(work, 'layer.tar'), '.'])
  const digest = (await run('sha256sum', [join(work, 'layer.tar')])).stdout.slice(0, 64)
  const image = JSON.stringify({
    architecture: process.arch === 'arm64' ? 'arm64' : 'amd64',
    os: 'linux',
    config,
    rootfs: { type: 'layers', diff_ids: [`sha256:${digest}`] },
    history: [{ created_by: 'test' }],
  })
  writeFileSync(join(work, 'config.json'), image)
  writeFileSync(
    join(work, 'manifest.json'),
    JSON.stringify([{ Config: 'config.json', RepoTags: [name], Layers: ['layer.tar'] }]),
  )
  await run('tar', [...plain, '-C', work, '-cf', file, 'manifest.json', 'config.json', 'layer.tar'])
  rmSync(work, { recursive: true })
}
