/**
 * The schema of the views for the SQL of clients. Each archive has one beside the schema of its
 * tables.
 */
export const provenanceOf = (schema: string): string => `${schema}_provenance`

/** A statement of the service, with the archive's schema in place of the schema of the views. */
export const inArchive = (text: string, schema: string): string =>
  text
    .replace(/\bprovenance\.(?=[a-z_])/g, `${provenanceOf(schema)}.`)
    .replace(/\bschema if not exists provenance\b/g, `schema if not exists ${provenanceOf(schema)}`)
