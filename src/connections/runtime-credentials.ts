import type { FunctionCredential } from '../clients/functions.ts'
import { DriverError } from '../drivers/runtime/contract/driver.ts'
import { ownRecords } from '../db/own-records.ts'
import { awsKeyOf } from '../vault/provider-documents.ts'
import type { SecretOpener } from '../vault/secret.ts'

/**
 * The secret that a function's `credentialRef` names: a token, or the access key of an AWS
 * credential. @throws DriverError `refused` for others, Refusal as `open`
 */
export const functionCredential = async (
  secrets: SecretOpener,
  reference: string,
): Promise<FunctionCredential> => {
  const secret = await ownRecords(secrets.open(reference, { actor: 'service', purpose: 'call a function' }))
  if (secret.kind === 'kubernetes-token') return { kind: 'bearer', token: secret.token }
  if (secret.kind === 'cloud-credential' && secret.provider === 'aws') {
    const key = awsKeyOf(secret.document)
    if (key !== undefined) return { kind: 'aws', ...key }
  }
  throw new DriverError(
    'refused',
    `credential ${JSON.stringify(reference)} is neither a token nor an AWS access key; refer to one`,
  )
}

/**
 * The token that a Slurm runtime's `slurmrestd.credentialRef` names. @throws DriverError `refused`
 * for other secrets, Refusal as `open`
 */
export const slurmToken = async (secrets: SecretOpener, reference: string): Promise<string> => {
  const secret = await ownRecords(secrets.open(reference, { actor: 'service', purpose: 'ask slurmrestd' }))
  if (secret.kind === 'kubernetes-token') return secret.token
  throw new DriverError('refused', `credential ${JSON.stringify(reference)} is not a token`)
}
