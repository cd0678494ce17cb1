import { mkdirSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import { join } from 'node:path'
import { describedBuild } from '../artifacts/world.ts'
import { environmentOf, localStorage, storageRoot } from '../storages/world.ts'
import { consoleEnvironment } from '../support/consoles.ts'
import { openService } from '../support/service.ts'

/**
 * The service with what most kinds of operations need on this machine: a storage `files` with
 * `folder/one`, a resource `here` with a console, an environment `clouds`, and a build `image` whose
 * engine is there and refuses to build.
 */
export const openEveryKind = async () => {
  const root = storageRoot()
  mkdirSync(join(root, 'folder'))
  writeFileSync(join(root, 'folder', 'one'), '1')
  const engine = createServer(({ url = '' }, response) => {
    if (url.endsWith('/_ping')) response.end('OK')
    else response.writeHead(404).end('{"message":"none"}')
  })
  const socket = join(root, 'engine.sock')
  await new Promise<void>((resolve) => engine.listen(socket, resolve))
  const service = await openService({
    environment: {
      ...{ SERVICE_CONSOLE_ENABLED: 'true', SERVICE_LOCAL_STORAGE_ROOT: root },
      SERVICE_CONTAINER_ENGINE: socket,
    },
    lookEverySeconds: 1,
  })
  const close = async (): Promise<void> => {
    for (const { id } of await service.get('/console-sessions/'))
      await service.call('DELETE', `/console-sessions/${id}/`)
    engine.close()
    engine.closeAllConnections()
    await service[Symbol.asyncDispose]()
  }
  await service.post('/environments/', environmentOf('lab', [localStorage('files', root)]))
  await service.post('/environments/', consoleEnvironment('desk', { here: { driver: 'local' } }))
  await service.post('/environments/', {
    ...environmentOf('clouds', []),
    runtimes: [{ id: 'clouds-r', name: 'r', driver: 'cloud', mode: 'execution' }],
  })
  await describedBuild(service, 'image', { Dockerfile: 'FROM scratch\n' })
  return { service, root, close }
}
