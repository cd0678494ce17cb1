import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { startKernelHost, type KernelHost } from './ssh-kernel.ts'

/**
 * An SSH host that mounts a folder by NFS 4.2. Server and client are the kernel of one host, since
 * most machines' kernels have neither: the bytes go through the protocol, over its loopback.
 */
export interface NfsSite extends AsyncDisposable {
  readonly host: KernelHost
  /** Where the host mounts it, for all accounts. */
  readonly mount: '/media/files'
  /** The folder that the server exports. */
  readonly exported: '/srv/exported'
  /** Cuts the loopback between client and server: requests of the mount hang from now on. */
  silence(): Promise<void>
  /** What hangs goes on. */
  wake(): Promise<void>
}

const modules = '/usr/lib/uml/modules'

/** Loads modules of the kernel, those that they need before them. */
const loading = (...wanted: readonly string[]): string => {
  const [version] = readdirSync(modules)
  if (version === undefined) throw new Error(`the kernel has no modules in ${modules}`)
  const folder = join(modules, version)
  const needed = new Map(
    readFileSync(join(folder, 'modules.dep'), 'utf8')
      .split('\n')
      .map((line) => line.split(':'))
      .map(([name = '', rest = '']) => [name, rest.trim().split(' ').filter(Boolean)] as const),
  )
  const files = new Set<string>()
  for (const name of wanted) {
    const own = [...needed.keys()].find((each) => each.endsWith(`/${name}.ko`))
    if (own === undefined) throw new Error(`the kernel has no module ${name}`)
    // The list has the nearest first.
    for (const each of [...(needed.get(own) ?? []).toReversed(), own]) files.add(join(folder, each))
  }
  return [...files].map((file) => `busybox insmod ${file} || true`).join('\n')
}

/**
 * Fills what `exportfs` and `mountd` tell the kernel: the client 127.0.0.1, and one folder as the
 * root of all exports (number 0), for writing, with the client's own users.
 */
const serving = (exported: string, mount: string): string => `set -e
mount -t tmpfs -o mode=755 tmp /srv
mkdir -p ${exported}
chmod 1777 ${exported}
mount -t nfsd nfsd /proc/fs/nfsd
echo '-2 -3 +4 +4.1 +4.2' > /proc/fs/nfsd/versions
echo 'nfsd 127.0.0.1 4000000000 localhost' > /proc/net/rpc/auth.unix.ip/channel
echo 'localhost ${exported} 4000000000 9218 65534 65534 0' > /proc/net/rpc/nfsd.export/channel
echo 'localhost 1 \\x00000000 4000000000 ${exported}' > /proc/net/rpc/nfsd.fh/channel
echo 10 > /proc/fs/nfsd/nfsv4leasetime
echo 10 > /proc/fs/nfsd/nfsv4gracetime
echo 'tcp 2049' > /proc/fs/nfsd/portlist
echo 4 > /proc/fs/nfsd/threads
echo Y > /proc/fs/nfsd/v4_end_grace 2>/dev/null || true
mount -t tmpfs -o mode=755 tmp /media
mkdir ${mount}
mount -i -t nfs4 -o vers=4.2,addr=127.0.0.1,clientaddr=127.0.0.1,sec=sys,hard 127.0.0.1:/ ${mount}
`

/** Starts it in about ten seconds. It ends with `asyncDispose` and with the calling process. */
export const startNfs = async (): Promise<NfsSite> => {
  const host = await startKernelHost()
  const [exported, mount] = ['/srv/exported', '/media/files'] as const
  try {
    await host.run(`${loading('nfsd', 'nfsv4')}\n${serving(exported, mount)}`)
  } catch (error) {
    await host[Symbol.asyncDispose]()
    throw error
  }
  return {
    ...{ host, mount, exported },
    silence: async () => void (await host.run('ip link set lo down')),
    wake: async () => void (await host.run('ip link set lo up')),
    [Symbol.asyncDispose]: () => Promise.resolve(host[Symbol.asyncDispose]()),
  }
}
