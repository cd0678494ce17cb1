import {
  copyFileSync,
  existsSync,
  linkSync,
  mkdirSync,
  readFileSync,
  realpathSync,
  renameSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { createHash } from 'node:crypto'
import { dirname, join } from 'node:path'
import { folderAt, run } from './ground.ts'
import { imageArchive } from './kubernetes-images.ts'

/**
 * Files of container images, made from programs of this machine, so that no public registry is
 * needed. They are in the machine's cache, under a name that depends on their content.
 */

const cache = '/var/cache/orrery/test-images'
const searchPath = '/usr/bin:/bin:/usr/sbin:/sbin'

/** Programs that tasks of the tests call, at Debian's paths. */
const programs = [
  ...[
    'sh',
    'env',
    'ls',
    'cat',
    'sleep',
    'seq',
    'head',
    'tail',
    'mkdir',
    'rm',
    'mv',
    'cp',
    'ln',
    'touch',
    'true',
    'false',
    'pwd',
    'wc',
    'sort',
    'tr',
  ],
  ...[
    'id',
    'uname',
    'hostname',
    'stat',
    'dd',
    'chmod',
    'mkfifo',
    'mknod',
    'truncate',
    'nice',
    'find',
    'setsid',
    'grep',
    'sed',
    'echo',
    'printf',
    'nproc',
    'df',
    'kill',
    'date',
  ],
]

const resolved = async (program: string): Promise<string> => {
  const { stdout } = await run(
    '/bin/sh',
    ['-c', `PATH=${searchPath} command -v "$1"; PATH=${searchPath} which "$1"`, 'sh', program],
    {
      mayFail: true,
    },
  )
  const path = stdout.split('\n').find((line) => line.startsWith('/'))
  if (path === undefined) throw new Error(`this machine has no ${program}`)
  return realpathSync(path)
}

/** Shared objects that a program loads, its loader included. */
const librariesOf = async (path: string): Promise<string[]> => {
  const { stdout } = await run('ldd', [path], { mayFail: true })
  return [...stdout.matchAll(/(?:=> |^\s*)(\/\S+) \(0x/gm)].map(([, library = '']) => library)
}

const put = (from: string, to: string): void => {
  if (existsSync(to)) return
  mkdirSync(dirname(to), { recursive: true })
  try {
    linkSync(from, to)
  } catch {
    copyFileSync(from, to)
  }
}

export interface ImageFiles {
  /**
   * The root of the image: `/bin/sh`, GNU coreutils, findutils, grep, sed, and this Node as
   * `/usr/bin/node`.
   */
  root: string
  /** Changes with the content. */
  key: string
}

/** A small system as a folder, made once per machine and version. */
export const systemFiles = async (): Promise<ImageFiles> => {
  const paths = new Map<string, string>()
  for (const program of programs) paths.set(program, await resolved(program))
  paths.set('node', process.execPath)
  const libraries = new Set((await Promise.all([...new Set(paths.values())].map(librariesOf))).flat())
  const key = createHash('sha256')
    .update(
      JSON.stringify([...paths, ...libraries, process.version, readFileSync('/etc/os-release', 'utf8')]),
    )
    .digest('hex')
    .slice(0, 16)
  const root = join(cache, `system-${key}`)
  if (existsSync(root)) return { root, key }
  const making = `${root}.${process.pid}`
  rmSync(making, { recursive: true, force: true })
  for (const folder of [
    'usr/bin',
    'usr/lib64',
    'usr/lib',
    'proc',
    'sys',
    'dev',
    'tmp',
    'etc',
    'root',
    'var/tmp',
    'run',
  ])
    mkdirSync(join(making, folder), { recursive: true })
  for (const folder of ['bin', 'lib', 'lib64']) symlinkSync(`usr/${folder}`, join(making, folder))
  for (const [program, path] of paths) put(path, join(making, 'usr/bin', program))
  for (const library of libraries)
    put(realpathSync(library), join(making, library.startsWith('/usr') ? library : `usr${library}`))
  writeFileSync(join(making, 'etc/passwd'), 'root:x:0:0:root:/root:/bin/sh\n')
  writeFileSync(join(making, 'etc/group'), 'root:x:0:\n')
  writeFileSync(join(making, 'etc/resolv.conf'), '')
  writeFileSync(join(making, 'etc/hosts'), '127.0.0.1 localhost\n')
  try {
    renameSync(making, root)
  } catch {
    // Another test run finished first.
    rmSync(making, { recursive: true, force: true })
  }
  return { root, key }
}

/**
 * The same system as a SIF file, uncompressed: 120 MB in a second instead of half a minute. Needs
 * Apptainer.
 */
export const systemSif = async (): Promise<string> => {
  const { root, key } = await systemFiles()
  const file = join(cache, `system-${key}.sif`)
  if (existsSync(file)) return file
  const making = `${file}.${process.pid}`
  await run('apptainer', ['-q', 'build', '-F', '--mksquashfs-args', '-noI -noD -noF -noX', making, root], {
    deadlineMs: 300_000,
  })
  renameSync(making, file)
  return file
}

/**
 * A docker archive of `docker.io/local/bare:1`, made below `folder`: static busybox as
 * `/app/busybox`, without any other file, shell or folder.
 */
export const bareArchive = async (folder: string): Promise<string> => {
  const root = folderAt(join(folder, 'bare'))
  copyFileSync(await resolved('busybox'), join(folderAt(join(root, 'app')), 'busybox'))
  const file = join(folder, 'bare.tar')
  await imageArchive(root, 'docker.io/local/bare:1', {}, file)
  return file
}
