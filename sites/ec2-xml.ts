import { randomUUID } from 'node:crypto'

/** The content of an answer of the query protocol: members by name; an array repeats its member. */
export type Xml = { [name: string]: string | number | Xml | (string | Xml)[] }

const escaped = (text: string): string =>
  text.replace(/[&<>"']/g, (letter) => `&#${String(letter.charCodeAt(0))};`)

const element = (name: string, value: Xml[string]): string => {
  if (Array.isArray(value)) return value.map((one) => element(name, one)).join('')
  const content = typeof value === 'object' ? xmlOf(value) : escaped(String(value))
  return `<${name}>${content}</${name}>`
}

const xmlOf = (members: Xml): string =>
  Object.entries(members)
    .map(([name, value]) => element(name, value))
    .join('')

/** STS has its own form, and another name for a wrong signature. */
const stsRefusal = (code: string, message: string): string =>
  `<ErrorResponse><Error><Type>Sender</Type><Code>${escaped(
    code === 'AuthFailure' ? 'InvalidClientTokenId' : code,
  )}</Code><Message>${escaped(message)}</Message></Error><RequestId>${randomUUID()}</RequestId></ErrorResponse>`

const refusal = (code: string, message: string): string =>
  `<?xml version="1.0" encoding="UTF-8"?><Response><Errors><Error><Code>${escaped(code)}</Code><Message>${escaped(
    message,
  )}</Message></Error></Errors><RequestID>${randomUUID()}</RequestID></Response>`

/** The answer of an action, or its refusal (an error with `code` and `status`). */
export const answerOf = async (
  action: string,
  work: () => Promise<Xml>,
): Promise<{ status: number; text: string }> => {
  try {
    const body = xmlOf({ requestId: randomUUID(), ...(await work()) })
    return {
      status: 200,
      text: `<?xml version="1.0" encoding="UTF-8"?><${action}Response>${body}</${action}Response>`,
    }
  } catch (error) {
    const { code, status, message } = error as Error & { code?: string; status?: number }
    if (code === undefined || status === undefined) throw error
    const text = action === 'GetCallerIdentity' ? stsRefusal(code, message) : refusal(code, message)
    return { status, text }
  }
}
