import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { folderAt, run } from './ground.ts'
import type { Host } from './hosts.ts'
import { startDaemon } from './kubernetes-daemon.ts'
import type { Daemon } from './kubernetes-daemon.ts'

/**
 * An image registry (Debian's docker-registry) over plain HTTP. It can be stopped and started
 * again.
 */
export interface Registry {
  /** `<address>:5000`, the first part of its images' names. */
  readonly address: string
  /**
   * Copies a docker archive there under a name such as `app/tool:1`. @returns the digest:
   * `sha256:…`
   */
  push(archive: string, name: string): Promise<string>
  /**
   * Removes an image, with every tag of its digest. Nodes keep the copies that they have pulled.
   */
  remove(name: string): Promise<void>
  /** Resolves when the registry is gone; connections to it are refused. Pushed images stay. */
  kill(): Promise<void>
  /** Resolves when it answers. */
  start(): Promise<void>
}

/**
 * Starts a registry on port 5000 of a host that shares this machine's `/tmp`; `folder` holds its
 * images and log.
 */
export const startRegistry = async (host: Host, folder: string): Promise<Registry> => {
  const address = `${host.address}:5000`
  const settings = join(folderAt(folder), 'config.yml')
  writeFileSync(
    settings,
    JSON.stringify({
      version: 0.1,
      log: { level: 'warn', accesslog: { disabled: true } },
      storage: { filesystem: { rootdirectory: folderAt(join(folder, 'images')) }, delete: { enabled: true } },
      http: { addr: '0.0.0.0:5000' },
    }),
  )
  let daemon: Daemon | undefined
  const digestOf = async (name: string): Promise<string> => {
    const { repository, tag } = parted(name)
    const answer = await fetch(`http://${address}/v2/${repository}/manifests/${tag}`, {
      method: 'HEAD',
      headers: {
        accept:
          'application/vnd.docker.distribution.manifest.v2+json, application/vnd.oci.image.manifest.v1+json',
      },
    })
    const digest = answer.headers.get('docker-content-digest')
    if (!answer.ok || digest === null) throw new Error(`the registry answers ${answer.status} for ${name}`)
    return digest
  }
  const start = async (): Promise<void> => {
    daemon = await startDaemon(host, join(folder, 'log'), ['docker-registry', 'serve', settings])
    await daemon.ready(() =>
      fetch(`http://${address}/v2/`).then(
        ({ ok }) => ok,
        () => false,
      ),
    )
  }
  await start()
  return {
    address,
    push: async (archive, name) => {
      // The archive's own name may differ from its name in the registry.
      await run('skopeo', [
        '--insecure-policy',
        'copy',
        '--quiet',
        '--dest-tls-verify=false',
        `docker-archive:${archive}`,
        `docker://${address}/${name}`,
      ])
      return digestOf(name)
    },
    remove: async (name) => {
      const answer = await fetch(
        `http://${address}/v2/${parted(name).repository}/manifests/${await digestOf(name)}`,
        { method: 'DELETE' },
      )
      if (!answer.ok) throw new Error(`the registry answers ${answer.status} to the removal of ${name}`)
    },
    kill: async () => daemon?.kill(),
    start,
  }
}

const parted = (name: string): { repository: string; tag: string } => {
  const [repository = '', tag = 'latest'] = name.split(':')
  return { repository, tag }
}
