import { join } from 'node:path'
import { configFromEnvironment } from '../src/config.ts'
import { builtOnce } from '../src/embedded/go-build.ts'
import { openLog } from '../src/observability/log.ts'

/** A program of a published Go module. */
export interface GoProgram {
  title: string
  /** Its file; it lies in the cache below `folder` and its version. */
  name: string
  folder?: string
  module: string
  version: string
  /** The package of the module that has it. */
  source: string
  /** The oldest Go that compiles it. */
  go: string
  linkerFlags?: string
}

/** The path of the program, which is built where the cache lacks it. @throws as `buildWithGo` */
export const goProgram = ({
  title,
  name,
  folder = name,
  module,
  version,
  source,
  go,
  linkerFlags,
}: GoProgram): Promise<string> => {
  const { cacheDir, childEnvironment: environment } = configFromEnvironment()
  return builtOnce({
    ...{ title, source, cacheDir, environment },
    module: `module build\n\ngo ${go}\n\nrequire ${module} ${version}\n`,
    flags: ['-mod=mod', '-modcacherw'],
    ...(linkerFlags === undefined ? {} : { linkerFlags }),
    settings: { CGO_ENABLED: '0' },
    target: join(cacheDir, folder, version, name),
    log: openLog('warn'),
    everySeconds: 15,
    onProgress: (message) => void process.stderr.write(`${message}\n`),
    remedy: `Install Go ${go} or newer.`,
  })
}
