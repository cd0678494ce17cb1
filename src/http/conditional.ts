import { hash } from 'node:crypto'

/** Strong entity tag of a body as it is sent. */
export const entityTag = (body: string | Buffer): string => `"${hash('sha1', body, 'base64url')}"`

const opaque = (tag: string): string => (tag.startsWith('W/') ? tag.slice(2) : tag)
const tags = (header: string): string[] => header.split(',').map((tag) => tag.trim())

/** Whether If-None-Match names the current version (weak comparison, RFC 9110 13.1.2): the client has it already. */
export const isKnown = (ifNoneMatch: string | undefined, current: string): boolean =>
  ifNoneMatch !== undefined && (ifNoneMatch.trim() === '*' || tags(ifNoneMatch).some((tag) => opaque(tag) === opaque(current)))

/** Whether If-Match excludes the current version (strong comparison); undefined: there is no current one. */
export const isOther = (ifMatch: string | undefined, current: string | undefined): boolean =>
  ifMatch !== undefined && (current === undefined || (ifMatch.trim() !== '*' && !tags(ifMatch).includes(current)))
