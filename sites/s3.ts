import { existsSync, mkdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { leash } from '../src/embedded/leash.ts'
import { freePort } from '../src/embedded/ports.ts'
import { goProgram } from './go-program.ts'
import { folderAt, openGround, run, until } from './ground.ts'

const version = 'v1.8.0'

export interface AccessKey {
  accessKeyId: string
  secretAccessKey: string
}

/** An S3 server on loopback, path style, region us-east-1; buckets are folders. */
export interface S3Site extends AsyncDisposable {
  readonly folder: string
  readonly endpoint: string
  /** The key of its administrator. */
  readonly accessKey: AccessKey
  /** The key of an account without any rights. */
  readonly stranger: AccessKey
  /** Creates a bucket. @returns the folder that holds its objects as files */
  bucket(name: string): string
  /** Makes a bucket readable without a signature. */
  publish(name: string): Promise<void>
  log(): string
  /** Ends the server at once. */
  kill(): Promise<void>
  /** Starts it again at the same address. */
  start(): Promise<void>
  stop(): Promise<void>
}

/**
 * The program `versitygw`, built from its Go module into the cache where it is missing: 40 s on two
 * idle cores.
 */
export const gatewayProgram = (): Promise<string> =>
  goProgram({
    title: 'the S3 server',
    name: 'versitygw',
    ...{ module: 'github.com/versity/versitygw', version, go: '1.26' },
    source: 'github.com/versity/versitygw/cmd/versitygw',
  })

/** Starts versitygw; it ends with this process. @throws Error with the end of its log */
export const startS3 = async (): Promise<S3Site> => {
  const program = await gatewayProgram()
  const ground = openGround('s3')
  const port = await freePort()
  const endpoint = `http://127.0.0.1:${port}`
  const accessKey = { accessKeyId: 'AKIAEXAMPLE', secretAccessKey: 'example-secret/key' }
  const stranger = { accessKeyId: 'AKIASTRANGER', secretAccessKey: 'stranger-secret' }
  const [data, versions, accounts] = ['data', 'versions', 'accounts'].map((name) =>
    folderAt(join(ground.folder, name), 0o700),
  ) as [string, string, string]
  const logFile = join(ground.folder, 'log')
  const log = (): string => (existsSync(logFile) ? readFileSync(logFile, 'utf8') : '')
  const administer = (...words: string[]): Promise<unknown> =>
    run(program, [
      'admin',
      '-a',
      accessKey.accessKeyId,
      '-s',
      accessKey.secretAccessKey,
      '-er',
      endpoint,
      ...words,
    ])
  let running: Awaited<ReturnType<typeof leash>> | undefined

  const start = async (): Promise<void> => {
    running = await leash({
      command: [
        program,
        ...[
          '--port',
          `127.0.0.1:${port}`,
          '--access',
          accessKey.accessKeyId,
          '--secret',
          accessKey.secretAccessKey,
        ],
        ...['--quiet', '--keep-alive', '--iam-dir', accounts, 'posix', '--versioning-dir', versions, data],
      ],
      environment: { PATH: '/usr/bin:/bin', HOME: ground.folder },
      directory: '/',
      logFile,
      softSignal: 'TERM',
      patienceSeconds: 5,
    })
    await until(
      'the S3 server',
      () =>
        fetch(endpoint).then(
          () => true,
          () => false,
        ),
      log,
    )
  }

  const site: Omit<S3Site, typeof Symbol.asyncDispose> = {
    folder: ground.folder,
    endpoint,
    accessKey,
    stranger,
    bucket(name) {
      const folder = join(data, name)
      mkdirSync(folder, { recursive: true })
      return folder
    },
    async publish(name) {
      const { AwsV4Signer } = await import('aws4fetch')
      const policy = {
        Version: '2012-10-17',
        Statement: [
          {
            Effect: 'Allow',
            Principal: '*',
            Action: ['s3:GetObject', 's3:ListBucket'],
            Resource: [`arn:aws:s3:::${name}`, `arn:aws:s3:::${name}/*`],
          },
        ],
      }
      const signer = new AwsV4Signer({
        ...accessKey,
        ...{
          method: 'PUT',
          url: `${endpoint}/${name}?policy`,
          body: JSON.stringify(policy),
          service: 's3',
          region: 'us-east-1',
        },
      })
      const { url, headers, body } = await signer.sign()
      const answer = await fetch(url, { method: 'PUT', headers, body: body as string })
      if (!answer.ok)
        throw new Error(`the bucket cannot be published: ${answer.status} ${await answer.text()}`)
    },
    log,
    async kill() {
      running?.kill()
      await running?.ended
    },
    start,
    async stop() {
      await running?.release()
      await ground.leave()
    },
  }
  try {
    await start()
    await administer('create-user', '-a', stranger.accessKeyId, '-s', stranger.secretAccessKey, '-r', 'user')
  } catch (error) {
    await site.stop()
    throw error
  }
  return { ...site, [Symbol.asyncDispose]: () => site.stop() }
}
