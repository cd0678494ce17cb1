import {
  createPrivateKey,
  createPublicKey,
  generateKeyPairSync,
  hash,
  type KeyObject,
  sign,
} from 'node:crypto'
import type { Db } from '../../db/sql.ts'
import { missing, Refusal } from '../../refusal.ts'
import type { SecretOpener } from '../../vault/secret.ts'
import { referenceOf, type Vault } from '../../vault/vault.ts'
import { version } from '../../version.ts'
import { readBuild } from './builds.ts'
import { readOutput, readRun } from './runs.ts'
import type { BuildBase } from './schemas.ts'

/**
 * The provenance of a build run: SLSA v1 in an in-toto statement, in a DSSE envelope.
 * https://slsa.dev/spec/v1.0/provenance
 * https://github.com/secure-systems-lab/dsse/blob/master/protocol.md
 */

export interface AttestationParts {
  db: Db
  vault: SecretOpener & Pick<Vault, 'put'>
}

const keyId = 'attestation'
const reference = referenceOf('signing-key', keyId)

const pemOf = (key: KeyObject): string =>
  createPublicKey(key).export({ type: 'spki', format: 'pem' }).toString()

/** The key of this installation, made at its first use. @throws Refusal 503 without a vault key */
const signingKey = async ({ db, vault }: AttestationParts): Promise<KeyObject> => {
  const opened = async (): Promise<KeyObject> => {
    const secret = await vault.open(reference, {
      actor: 'service',
      purpose: 'sign the provenance of a build',
    })
    if (secret.kind !== 'signing-key') throw new Error(`${reference} holds no signing key`)
    return createPrivateKey(secret.privateKey)
  }
  try {
    return await opened()
  } catch (error) {
    if (!(error instanceof Refusal) || error.code !== 'unacceptable') throw error
  }
  const { privateKey } = generateKeyPairSync('ed25519')
  const pem = privateKey.export({ type: 'pkcs8', format: 'pem' }).toString()
  // Of two requests at once the first one's key stays.
  await vault.put(db, keyId, { kind: 'signing-key', privateKey: pem }, { publicKey: pemOf(privateKey) })
  return opened()
}

/** The public half, in PEM. */
export const attestationKey = async (parts: AttestationParts): Promise<string> =>
  pemOf(await signingKey(parts))

const hex = (digest: string): { sha256: string } => ({ sha256: digest.slice(7) })

const inEngine = 'image in the engine'
const dependencyOf = ({ image, digest, digestOf }: BuildBase) => ({
  ...(digestOf === 'engine' ? { name: inEngine } : {}),
  ...{ uri: `docker://${image}`, digest: hex(digest) },
})

const statementOf = async ({ db }: AttestationParts, runId: string) => {
  const [run, output] = await Promise.all([readRun(db, runId), readOutput(db, runId)])
  if (run.status !== 'completed' || run.outputDigest === undefined)
    throw missing('attestation of the build run', runId)
  const build = await readBuild(db, run.artifactBuildId)
  const { sourceType, image, contextDigest, recipePath, recipeDigest, targetFormat, targetOs } = build
  const { targetArchitecture, buildArguments, network } = build
  const { bases = [] } = run
  const given = bases.find(({ digestOf }) => digestOf === 'registry')?.digest ?? image?.split('@')[1]
  const taken = output?.imageId == null ? [] : [{ name: inEngine, digest: hex(output.imageId) }]
  return {
    _type: 'https://in-toto.io/Statement/v1',
    subject: [{ name: `${run.id}.${targetFormat}`, digest: hex(run.outputDigest) }],
    predicateType: 'https://slsa.dev/provenance/v1',
    predicate: {
      buildDefinition: {
        buildType: `https://orrery.dev/builds/${sourceType}/v1`,
        externalParameters: {
          ...{ sourceType, image, recipePath, targetFormat, targetOs, targetArchitecture, network },
          buildArguments: JSON.parse(buildArguments) as unknown,
        },
        internalParameters: output?.packer == null ? {} : { packer: output.packer },
        resolvedDependencies:
          sourceType === 'docker-image'
            ? [
                {
                  uri: `docker://${image ?? ''}`,
                  ...(given === undefined ? {} : { digest: hex(given) }),
                },
                ...taken,
              ]
            : [
                { uri: `artifact://contexts/${contextDigest.slice(7)}`, digest: hex(contextDigest) },
                { name: recipePath, digest: hex(recipeDigest) },
                ...bases.map(dependencyOf),
              ],
      },
      runDetails: {
        builder: {
          id: `https://orrery.dev/hosts/${encodeURIComponent(output?.hostId ?? '')}`,
          version: { orrery: version },
        },
        metadata: { invocationId: run.id, startedOn: run.startedAt, finishedOn: run.finishedAt },
        ...(sourceType === 'dockerfile' ? { byproducts: taken } : {}),
      },
    },
  }
}

const payloadType = 'application/vnd.in-toto+json'

/** The signed envelope of a completed run. @throws Refusal 404, 503 */
export const attestationOf = async (parts: AttestationParts, runId: string) => {
  const payload = Buffer.from(JSON.stringify(await statementOf(parts, runId)))
  const key = await signingKey(parts)
  const head = `DSSEv1 ${String(payloadType.length)} ${payloadType} ${String(payload.length)} `
  const signature = sign(null, Buffer.concat([Buffer.from(head), payload]), key)
  const keyid = hash('sha256', pemOf(key))
  return {
    payloadType,
    payload: payload.toString('base64'),
    signatures: [{ keyid, sig: signature.toString('base64') }],
  }
}
