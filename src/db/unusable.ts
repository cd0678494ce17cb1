import { StartError, withoutPassword } from '../config.ts'

const unreachable = 'start PostgreSQL there or give the right address'
const wrongLogin = 'give the right user and password'

/**
 * Reasons why a server cannot be used, with the remedy, by the code of the system or of PostgreSQL.
 */
const reasons: Readonly<Record<string, string>> = {
  ECONNREFUSED: `the connection is refused: ${unreachable}`,
  ECONNRESET: `the connection is cut: ${unreachable}`,
  ETIMEDOUT: `there is no answer: ${unreachable}`,
  EHOSTUNREACH: `no way leads to the host: ${unreachable}`,
  ENETUNREACH: `no way leads to the host: ${unreachable}`,
  ENOTFOUND: `the host name is unknown: ${unreachable}`,
  EAI_AGAIN: `the host name cannot be looked up now: try again, or give an address instead of a name`,
  '28P01': `the password is wrong: ${wrongLogin}`,
  '28000': `the user is not accepted: ${wrongLogin}`,
  '3D000': 'the database does not exist: create it or give another name',
  '42501': 'the user may not make tables: let it own the database, or grant it CREATE on the schema',
  '53300': 'the server has no connection left: raise its max_connections',
  '57P03': 'the server is still starting or stopping: try again in a moment',
}

/** The pool's own deadline for a connection carries no code. */
const late = /timeout/i

const codeOf = (error: unknown): string | undefined => {
  if (!(error instanceof Error)) return undefined
  const { code } = error as NodeJS.ErrnoException
  return code ?? (late.test(error.message) ? 'ETIMEDOUT' : codeOf(error.cause))
}

/**
 * The error of a program that finds its database unusable at the start.
 * @param named whether SERVICE_DATABASE_URL names the database, or the daemon on this machine
 * @returns a StartError with address, reason and remedy; the error itself where it has another
 *   cause
 */
export const unusableDatabase = (databaseUrl: string, named: boolean, error: unknown): unknown => {
  const code = codeOf(error)
  const reason = code === undefined ? undefined : reasons[code]
  if (reason === undefined) return error
  const address = withoutPassword(databaseUrl)
  const what = named
    ? `SERVICE_DATABASE_URL=${address} cannot be used`
    : `the embedded database ${address} cannot be used`
  return new StartError(`${what}: ${reason} (${code})`, { cause: error })
}
